// A stage of a conversion: an objective, its text and the training loop; it keeps the weights of the best evaluation.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cortado/base/fields.h"
#include "cortado/convert/chunks.h"
#include "cortado/convert/objective.h"
#include "cortado/train/trainer.h"

namespace cortado {

struct StageOptions {
  int64_t batch = 1;             // chunks per forward and backward pass
  int64_t accumulate = 8;        // passes per step, whose gradients are added
  int64_t tokens = 0;            // tokens to train on, rounded up to whole steps
  int64_t evaluate_every = 100;  // steps
  double learning_rate = 1e-2, minimum_rate = 1e-5;

  int64_t tokens_per_step(int64_t context) const { return batch * accumulate * context; }
  void fields(JsonFields& json);
  int64_t steps(int64_t context) const { return (tokens + tokens_per_step(context) - 1) / tokens_per_step(context); }
};

class Stage {
 public:
  Stage(std::string name, std::shared_ptr<Objective> objective, const std::shared_ptr<const Chunks>& chunks,
        const StageOptions& options, const Ranks& ranks = {});

  // Returns true when all steps are done; the learned parameters then have the values of the best evaluation. Returns
  // false if stopped. Throws Failure with the step's number for a loss that is not finite.
  bool run(RunKeeper keeper, const RunControl& control);

  const std::string& name() const { return name_; }
  const TrainerState& state() const { return trainer_.state(); }
  // Losses of the first and of the best evaluation, one per part.
  const std::vector<double>& before() const { return before_; }
  const std::vector<double>& best() const { return best_losses_; }
  const Objective& objective() const { return *objective_; }
  int64_t steps() const { return options_.steps; }
  int64_t tokens() const { return trainer_.state().step * options_.tokens_per_step(); }

  Parameters learned() const { return objective_->learned(); }
  // The stage's checkpoint: its counters; and the tensors "learned.NAME", "best.NAME" and the optimiser's moments.
  // restore() needs exactly these; `place` names the file in errors.
  Json standing() const;
  NamedTensors tensors() const;
  void restore(const NamedTensors& tensors, const Json& standing, const std::string& place);

 private:
  static void fields(JsonFields& json, TrainerState& state, std::vector<double>& before, std::vector<double>& best);

  std::string name_;
  std::shared_ptr<Objective> objective_;
  TrainingOptions options_;
  Trainer trainer_;
  std::vector<double> before_, best_losses_;
  NamedTensors best_;
};

}  // namespace cortado
