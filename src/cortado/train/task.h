// What a training loop trains: batches, an objective on a model, and what is measured on data held out.
//
// A run (train/run.h) opens the data of its task first, lets it say what the model must be, and asks it for the task of
// the model. Language modelling (language_task.h) is one; another adds a file, and nothing here changes for it.
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

// What a task finds on data that it does not learn from.
struct Validation {
  double loss = 0;                   // the smaller the better: decides which weights are the best
  std::vector<double> parts = {};    // what the loss is made of, where a task has several
  Json metrics;                      // the task's own entries of the line in metrics.jsonl
  std::optional<double> score = {};  // the task's metric, the larger the better, where it has one
};

// Which part of a batch a process learns, of as many as there are processes, and how.
struct Turn {
  int64_t part = 0, parts = 1;
  const Relay* relay = nullptr;  // of the part, this process has a part of every sequence
  // Of `count` rows (examples, sequences): [begin, end). Parts differ by one at most, and may be empty.
  int64_t begin(int64_t count) const { return count * part / parts; }
  int64_t end(int64_t count) const { return count * (part + 1) / parts; }
  // sum.backward(), and what else belongs to it where gradients of several processes are added up.
  std::function<void(const Tensor& sum)> backward = [](const Tensor& sum) { sum.backward(); };
};

// What one batch, or a part of it, gave: sums over its targets. A step's loss and gradients are means over all targets
// of all its batches, on all processes, so nothing is divided before all of them are known.
struct LearnedBatch {
  Tensor losses;       // sums of losses, detached, of any shape
  double targets = 0;  // so many terms
  int64_t tokens = 0;  // read
};
// Of a part with nothing in it.
inline LearnedBatch nothing_learned(const Turn& turn) {
  const Tensor zero = at::zeros({});
  turn.backward(zero);
  return {zero};
}

// A task reads nothing but the weights, its own seed and the position: so a resumed run equals one that was never
// stopped. Where it draws from torch's generator (dropout), the loop has seeded that by the step.
class Task {
 public:
  virtual ~Task() = default;

  // Those that train it together: they may share the validation out, too. The loop says it once.
  void train_among(const Ranks& ranks) { ranks_ = ranks; }

  // For the progress bar and the beginning of error messages: "train".
  virtual const std::string& name() const = 0;
  // What learns, by its names in the model.
  virtual Parameters learned() const = 0;
  // Which data it learns from: a run does not go on with other data.
  virtual DataIdentity data() const { return {}; }

  // Reads the batch at `position`, moves it on, and adds the gradients of the sum of the losses of this turn's part of
  // the batch; TrainingOptions::accumulate batches make a step.
  virtual LearnedBatch learn(DataPosition& position, const Turn& turn) = 0;
  // The step's loss, of the means of its losses.
  virtual double loss(const Tensor& means) const { return means.item<double>(); }

  // Whether a batch's sequences can lie over several processes. If not, why: "packed documents".
  virtual std::string undivided() const { return "the task's examples"; }

  // False: nothing is held out, and "best" is the last.
  virtual bool validates() const = 0;
  // No gradients, no dropout. `progress` is told the tokens done and to do; it may throw to end the work.
  using Progress = std::function<void(int64_t done, int64_t total)>;
  virtual Validation validate(const Progress& progress) = 0;

 protected:
  Ranks ranks_;
};

// The data of a task, before there is a model.
class TaskData {
 public:
  virtual ~TaskData() = default;

  // Decides what the config leaves to the data (its vocabulary, its classes, how long inputs are). InputError, beginning
  // with [`name`]: a model that cannot learn from it.
  virtual void complete(ModelConfig& model, TrainingOptions& options, const std::string& name) const = 0;
  // Of a model of a config that it has completed.
  virtual std::shared_ptr<Task> task(const std::shared_ptr<Backbone>& model, const TrainingOptions& options) const = 0;
  // Batches in which all of it has been read once; 0: it has no end.
  virtual int64_t epoch(const TrainingOptions&) const { return 0; }
  // Kept in the run's folder; null: the model reads no text.
  virtual const Tokenizer* tokenizer() const { return nullptr; }
  // For people: "1,003,854 tokens of speeches.txt".
  virtual std::string description() const = 0;
};

// `tokenizer`: the folder of the one that the run has already, or "". Data that is missing or damaged: InputError.
using OpenTaskData =
    std::function<std::unique_ptr<TaskData>(const TrainingOptions& options, const std::string& tokenizer)>;

}  // namespace cortado
