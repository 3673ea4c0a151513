// What a training loop trains: batches, an objective on a model, and what is measured on data held out.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <string>
#include <vector>

#include "cortado/base/json.h"
#include "cortado/models/checkpoint.h"
#include "cortado/train/data.h"

namespace cortado {

// What a task finds on data that it does not learn from.
struct Validation {
  double loss = 0;                 // the smaller the better: decides which weights are the best
  std::vector<double> parts = {};  // what the loss is made of, where a task has several
  Json metrics;                    // the task's own entries of the line in metrics.jsonl
};

// A task reads nothing but the weights, its own seed and the position: so a resumed run equals one that was never
// stopped. Where it draws from torch's generator (dropout), the loop has seeded that by the step.
class Task {
 public:
  virtual ~Task() = default;

  // For the progress bar and the beginning of error messages: "train".
  virtual const std::string& name() const = 0;
  // What learns, by its names in the model.
  virtual NamedTensors learned() const = 0;

  // Reads the batch at `position`, moves it on, and adds the batch's share of the step's gradients, of which
  // TrainingOptions::accumulate make a step. Returns its share of the losses, detached, of any shape.
  virtual Tensor learn(DataPosition& position) = 0;
  // The step's loss, of the sum of its shares.
  virtual double loss(const Tensor& shares) const { return shares.item<double>(); }

  // False: nothing is held out, and "best" is the last.
  virtual bool validates() const = 0;
  // No gradients, no dropout. `progress` is told the tokens done and to do; it may throw to end the work.
  using Progress = std::function<void(int64_t done, int64_t total)>;
  virtual Validation validate(const Progress& progress) = 0;
};

}  // namespace cortado
