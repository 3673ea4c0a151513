// A stage of a conversion: an objective, the text and the training loop, with the values of the best evaluation.
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
  int64_t batch = 1;             // chunks in a forward and backward pass
  int64_t accumulate = 8;        // passes whose gradients are added up before a step
  int64_t tokens = 0;            // to train on: rounded up to whole steps
  int64_t evaluate_every = 100;  // steps
  double learning_rate = 1e-2, minimum_rate = 1e-5;

  int64_t tokens_per_step(int64_t context) const { return batch * accumulate * context; }
  void fields(JsonFields& json);
  int64_t steps(int64_t context) const { return (tokens + tokens_per_step(context) - 1) / tokens_per_step(context); }
};

class Stage {
 public:
  Stage(std::string name, std::shared_ptr<Objective> objective, std::shared_ptr<const Chunks> chunks,
        const StageOptions& options, const Ranks& ranks = {});

  // True: all steps are done, and what learns holds the values of the best evaluation. False: stopped. A loss that is
  // not finite: Failure that names the step.
  bool run(RunKeeper keeper, const RunControl& control);

  const std::string& name() const { return name_; }
  const TrainerState& state() const { return trainer_.state(); }
  // Losses of the first and of the best evaluation, a part each.
  const std::vector<double>& before() const { return before_; }
  const std::vector<double>& best() const { return best_losses_; }
  const Objective& objective() const { return *objective_; }
  int64_t steps() const { return options_.steps; }
  int64_t tokens() const { return trainer_.state().step * options_.tokens_per_step(); }

  Parameters learned() const { return objective_->learned(); }
  // Its checkpoint: where it stands; "learned.NAME", "best.NAME" and the optimiser's moments. restore wants exactly
  // these; `place` names the file.
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
