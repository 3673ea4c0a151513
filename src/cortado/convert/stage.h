// The loop of a conversion's stage: gradient steps, evaluations, the plateau schedule, resuming.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cortado/base/json.h"
#include "cortado/convert/chunks.h"
#include "cortado/convert/objective.h"
#include "cortado/convert/plateau.h"
#include "cortado/train/metrics.h"
#include "cortado/train/optimizer.h"

namespace cortado {

struct StageOptions {
  int64_t batch = 1;             // chunks in a forward and backward pass
  int64_t accumulate = 8;        // passes whose gradients are averaged before a step
  int64_t tokens = 0;            // to train on: rounded up to whole steps
  int64_t evaluate_every = 100;  // steps
  double learning_rate = 1e-2;
  double minimum_rate = 1e-5;

  int64_t tokens_per_step(int64_t context) const { return batch * accumulate * context; }
  int64_t steps(int64_t context) const { return (tokens + tokens_per_step(context) - 1) / tokens_per_step(context); }
};

// Where a stage stands.
struct StageState {
  int64_t step = 0;
  double seconds = 0;  // spent in steps, all sessions together; evaluations apart
  Plateau plateau;
  int64_t evaluated_step = -1;       // the last evaluation
  int64_t best_step = -1;            // the best one
  std::vector<double> before, best;  // losses of the first and of the best evaluation, a part each

  Json to_json() const;
  static StageState from_json(const Json& json, const std::string& place);
};

// What a stage tells whoever runs it.
struct StageControl {
  std::function<bool()> stop = {};        // asked after every step and evaluation chunk: true ends it well
  int64_t stop_at = -1;                   // a step after which to end as if asked
  bool progress = true;                   // a bar
  int64_t first_step = 0;                 // steps of the stages before, for the metrics
  std::function<void()> improved = {};    // after an evaluation that is the best so far
  std::function<void()> checkpoint = {};  // after every evaluation, and when stopped
};

// What a step does depends on nothing but what learns, the moments, the plateau and the step's number: a resumed stage
// equals one that was never stopped, bit for bit on the same machine with the same number of threads.
class Stage {
 public:
  Stage(std::string name, std::shared_ptr<Objective> objective, std::shared_ptr<const Chunks> chunks,
        const StageOptions& options);

  // True: all steps are done, and what learns holds the values of the best evaluation. False: stopped. A loss that is
  // not finite: Failure that names the step.
  bool run(MetricsFile& metrics, const StageControl& control);

  const std::string& name() const { return name_; }
  const StageState& state() const { return state_; }
  const Objective& objective() const { return *objective_; }
  int64_t steps() const { return options_.steps(chunks_->length()); }
  int64_t tokens() const { return state_.step * options_.tokens_per_step(chunks_->length()); }
  bool done() const { return state_.step >= steps() && state_.evaluated_step == state_.step; }

  NamedTensors learned() const { return objective_->learned(); }
  // "learned.NAME", "best.NAME" and the optimiser's moments. restore wants exactly these.
  NamedTensors tensors() const;
  void restore(const NamedTensors& tensors, const StageState& state);
  void use_best();

 private:
  double step();
  bool evaluate(MetricsFile& metrics, const StageControl& control);

  std::string name_;
  std::shared_ptr<Objective> objective_;
  std::shared_ptr<const Chunks> chunks_;
  StageOptions options_;
  AdamW optimizer_;
  StageState state_;
  NamedTensors best_;
};

}  // namespace cortado
