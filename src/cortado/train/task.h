// A task of the training loop: batches, an objective on a model, and measurements on held-out data.
//
// A run (train/run.h) first opens the task's data, which completes the model's config, and then asks it for the task of
// the model. Language modelling (language_task.h) is one task; another one needs a file of its own and no change here.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cortado/base/json.h"
#include "cortado/data/batches.h"
#include "cortado/models/checkpoint.h"
#include "cortado/models/relay.h"
#include "cortado/parallel/ranks.h"
#include "cortado/tokenizers/tokenizer.h"
#include "cortado/train/options.h"

namespace cortado {

// The results of a task on data that it does not learn from.
struct Validation {
  double loss = 0;                   // smaller is better; decides which weights are the best
  std::vector<double> parts = {};    // the terms of the loss, if there are several
  Json metrics;                      // the task's own fields of the line in metrics.jsonl
  std::optional<double> score = {};  // the task's metric, if it has one; larger is better
};

// Which part of a batch this process handles, and how it runs backward.
struct BatchShare {
  int64_t part = 0, parts = 1;
  // If set, sequences are split over processes: this process has a part of every sequence of its part of the batch.
  const Relay* relay = nullptr;
  // Rows [begin, end) of `count` rows (examples, sequences). Parts differ by at most one row and may be empty.
  int64_t begin(int64_t count) const { return count * part / parts; }
  int64_t end(int64_t count) const { return count * (part + 1) / parts; }
  // Runs sum.backward(), and, with several processes, the summation of their gradients.
  std::function<void(const Tensor& sum)> backward = [](const Tensor& sum) { sum.backward(); };
};

// The results of a batch or a part of it, as sums over its targets. A step's loss and gradients are means over all
// targets of all its batches on all processes, so division must wait until all are known.
struct LearnedBatch {
  Tensor losses;       // sums of losses, detached, of any shape
  double targets = 0;  // number of targets
  int64_t tokens = 0;  // tokens read
};
// The result of an empty part.
inline LearnedBatch nothing_learned(const BatchShare& share) {
  const Tensor zero = at::zeros({});
  share.backward(zero);
  return {zero};
}

// A task depends only on the weights, its own seed and the position, so a resumed run equals one that was never
// stopped. If it draws from torch's generator (dropout), the loop has seeded that by the step.
class Task {
 public:
  virtual ~Task() = default;

  // Sets the processes that train together; they may also share the validation. The loop calls it once.
  void train_among(const Ranks& ranks) { ranks_ = ranks; }

  // A word for the progress bar and the beginning of error messages: "train".
  virtual const std::string& name() const = 0;
  // Returns the trained parameters, by their names in the model.
  virtual Parameters learned() const = 0;
  // Returns the identity of the training data: a run does not resume with other data.
  virtual DataIdentity data() const { return {}; }

  // Reads the batch at `position`, advances it, and adds the gradients of the summed losses of this process's share of the
  // batch. TrainingOptions::accumulate batches make a step.
  virtual LearnedBatch learn(DataPosition& position, const BatchShare& share) = 0;
  // Returns the step's loss, given the means of its losses.
  virtual double loss(const Tensor& means) const { return means.item<double>(); }

  // Returns "" if a batch's sequences can be split over several processes, otherwise what prevents it: "packed
  // documents".
  virtual std::string undivided() const { return "the task's examples"; }

  // Returns false if nothing is held out; "best" then means the last weights.
  virtual bool validates() const = 0;
  // Validates without gradients and dropout. `progress` gets the tokens done and in total; it may throw to end the
  // work.
  using Progress = std::function<void(int64_t done, int64_t total)>;
  virtual Validation validate(const Progress& progress) = 0;

 protected:
  Ranks ranks_;
};

// The data of a task, opened before there is a model.
class TaskData {
 public:
  virtual ~TaskData() = default;

  // Completes the config with what depends on the data (vocabulary, classes, length of inputs). Throws InputError,
  // beginning with [`name`], if the model cannot learn from the data.
  virtual void complete(ModelConfig& model, TrainingOptions& options, const std::string& name) const = 0;
  // Returns the task for a model made from a config that this object completed.
  virtual std::shared_ptr<Task> task(const std::shared_ptr<Backbone>& model, const TrainingOptions& options) const = 0;
  // Returns the number of batches per pass over the data; 0: the data have no end.
  virtual int64_t epoch(const TrainingOptions&) const { return 0; }
  // Returns the tokenizer to keep in the run's folder; null if the model reads no text.
  virtual const Tokenizer* tokenizer() const { return nullptr; }
  // Returns a description for people: "1,003,854 tokens of speeches.txt".
  virtual std::string description() const = 0;
};

// Opens a task's data. `tokenizer` is the folder of the run's existing tokenizer, or "". Throws InputError if data are
// missing or damaged.
using OpenTaskData =
    std::function<std::unique_ptr<TaskData>(const TrainingOptions& options, const std::string& tokenizer)>;

}  // namespace cortado
