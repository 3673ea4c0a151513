// The interface of a task: examples with answers, each a pure function of (settings, split, index), and the score of a
// model's answers. Training on tasks is in train/; this folder has no models.
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

inline constexpr int64_t kIgnored = -100;  // a target that is not scored
// limit for the number of examples and of tokens per example
inline constexpr int64_t kMostExamples = int64_t{1} << 30;

// Thrown if a task needs a data set that Cortado cannot generate, and its settings name no folder.
class NoFolder : public InputError {
 public:
  using InputError::InputError;
};

inline void need_folder(const std::string& folder, const std::string& task, const std::string& what) {
  if (folder.empty()) throw NoFolder(concat("[task] ", task, " needs \"folder\": ", what));
}

struct Example {
  std::vector<int64_t> tokens = {};   // the input: tokens, or
  std::vector<float> numbers = {};    // numbers [length, channels]
  std::vector<int64_t> second = {};   // tokens of a pair's second sequence
  std::vector<int64_t> targets = {};  // one per token: the answer at that token itself (not shifted by one)
  int64_t label = kIgnored;           // the class of the example
};

// The shape of a model for the task.
struct TaskShape {
  int64_t vocabulary = 0;  // of token inputs; 0: the inputs are numbers
  int64_t channels = 0;    // of number inputs
  int64_t classes = 0;     // number of classes, one class per example; 0: tokens have targets
  bool pairs = false;      // two sequences per example; their pair has the class
  int64_t length = 0;      // of the longest input
};

// Accumulates the scores of a model's answers. The result is an object of numbers; the task's own metric comes first.
class Scores {
 public:
  virtual ~Scores() = default;
  // `logits`, row by row: [places, vocabulary] at TaskExamples::places(), or [1, classes].
  virtual void add(int64_t index, const Example& example, std::span<const float> logits) = 0;
  virtual Json result() const = 0;
};

// A statistic of a generator that is known from another implementation or a paper.
struct Published {
  std::string name;  // a key of statistics()
  double value, tolerance;
};

class TaskExamples {
 public:
  virtual ~TaskExamples() = default;

  virtual TaskShape shape() const = 0;
  virtual int64_t size(Split split) const = 0;
  // 0 <= index < size(split).
  virtual Example example(Split split, int64_t index) const = 0;
  // How many examples each segment has, in order. A batch does not mix examples of different segments.
  virtual std::vector<int64_t> segments(Split split) const { return {size(split)}; }

  // The tokens at which a model's answers are scored; by default, those with a target.
  virtual std::vector<int64_t> places(const Example& example) const;
  virtual std::unique_ptr<Scores> scores(Split split) const = 0;

  // Statistics of the first `count` training examples, which distinguish a correct generator from a wrong one.
  virtual Json statistics(int64_t count) const = 0;
  // Expected statistics with these settings, with tolerances for 2,000 examples; empty if none are published.
  virtual std::vector<Published> published() const { return {}; }
  // The example as text for people: one or more lines.
  virtual std::string drawn(const Example& example) const = 0;
};

// Shared by tasks with images: pixels are inputs as tokens (bytes) or as numbers (x / 255 - 0.5) / 0.5.
TaskShape picture_shape(const std::string& input, int64_t pixels, int64_t classes);
void add_pixel(Example& example, const std::string& input, int64_t byte);

// The index of the largest value in a row.
int64_t largest(std::span<const float> row);

// An image with `columns` columns as text: two rows of pixels per line, with blocks for light pixels.
std::string drawn_image(const Example& example, int64_t columns);

// {"accuracy"}: the share of examples whose class has the largest logit.
std::unique_ptr<Scores> class_scores();

}  // namespace cortado
