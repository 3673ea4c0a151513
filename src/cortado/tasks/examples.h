// A task: examples with their answers, each a pure function of (settings, split, index), and the score of a model's
// answers. What trains on them is train/'s; here is no model.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cortado/base/json.h"
#include "cortado/base/words.h"

namespace cortado {

enum class Split { kTrain, kValidation, kTest };
extern const Words<Split> kSplits;

inline constexpr int64_t kIgnored = -100;                   // a target that does not count
inline constexpr int64_t kMostExamples = int64_t{1} << 30;  // and tokens of one: beyond what anybody asks for

// The data set of a task cannot be made here, and nobody has said where it is.
class NoFolder : public InputError {
 public:
  using InputError::InputError;
};

inline void need_folder(const std::string& folder, const std::string& task, const std::string& what) {
  if (folder.empty()) throw NoFolder(concat("[task] ", task, " needs \"folder\": ", what));
}

struct Example {
  std::vector<int64_t> tokens = {};   // what goes in; or
  std::vector<float> numbers = {};    // [length, channels]
  std::vector<int64_t> second = {};   // a pair's other tokens
  std::vector<int64_t> targets = {};  // one a token: what is to be said at that token itself (no shift by one)
  int64_t label = kIgnored;           // the class
};

// What a model for the task must be.
struct TaskShape {
  int64_t vocabulary = 0;  // tokens go in; 0: numbers
  int64_t channels = 0;    // of numbers
  int64_t classes = 0;     // an example has a class; 0: tokens have targets
  bool pairs = false;      // two sequences an example, whose pair has the class
  int64_t length = 0;      // of the longest input
};

// Adds up what is scored. Its result is an object of numbers, the task's own metric first.
class Scores {
 public:
  virtual ~Scores() = default;
  // logits: [places, vocabulary] of TaskExamples::places(), or [1, classes], row by row.
  virtual void add(int64_t index, const Example& example, std::span<const float> logits) = 0;
  virtual Json result() const = 0;
};

// What is known of a generator, from another implementation or a paper.
struct Published {
  std::string name;  // in statistics()
  double value, tolerance;
};

class TaskExamples {
 public:
  virtual ~TaskExamples() = default;

  virtual TaskShape shape() const = 0;
  virtual int64_t size(Split split) const = 0;
  // 0 <= index < size(split).
  virtual Example example(Split split, int64_t index) const = 0;
  // Batches don't mix examples of different segments: how many examples each of them has, in order.
  virtual std::vector<int64_t> segments(Split split) const { return {size(split)}; }

  // Where a model's answers are scored; here, where there is a target.
  virtual std::vector<int64_t> places(const Example& example) const;
  virtual std::unique_ptr<Scores> scores(Split split) const = 0;

  // Numbers that tell a right generator from a wrong one, of the training split's first `count` examples.
  virtual Json statistics(int64_t count) const = 0;
  // What they should be with these settings, within a tolerance for 2,000 examples; empty: nobody has published it.
  virtual std::vector<Published> published() const { return {}; }
  // For people, one or more lines.
  virtual std::string drawn(const Example& example) const = 0;
};

// What is common to tasks of pictures: pixels go in as tokens (bytes) or as numbers, (x / 255 - 0.5) / 0.5.
TaskShape picture_shape(const std::string& input, int64_t pixels, int64_t classes);
void add_pixel(Example& example, const std::string& input, int64_t byte);

// The place of the largest of one row.
int64_t largest(std::span<const float> row);

// An image of so many columns as two rows of pixels a line, light as blocks.
std::string drawn_image(const Example& example, int64_t columns);

// {"accuracy"}: the share of examples whose class is the largest logit.
std::unique_ptr<Scores> class_scores();

}  // namespace cortado
