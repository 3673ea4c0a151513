// The training loop: learning rates, accumulation, clipping, validation, checkpoints, stopping. Every task goes through
// it.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "cortado/parallel/gradients.h"
#include "cortado/train/optimizer.h"
#include "cortado/train/options.h"
#include "cortado/train/resume.h"
#include "cortado/train/task.h"

namespace cortado {

struct RunControl {
  std::function<bool()> stop;  // asked after every step and during validation: true ends the run well
  int64_t stop_at = -1;        // a step after which to end as if asked; -1: none
  bool progress = true;        // a bar
};

// Whoever writes down what a loop does.
struct RunKeeper {
  std::string place;                                                  // where checkpoints are, for messages
  std::function<void(const Json& line)> log;                          // a line of metrics.jsonl
  std::function<void(const Validation& found, bool best)> validated;  // best: so far
  std::function<void()> checkpoint;  // keeps what learns, the optimiser's moments and the state
};

// What a step does depends on nothing but what learns, the moments, the seed and the state, so a resumed run equals
// one that was never stopped, bit for bit with the same program on the same machine with the same number of threads
// (MKL's products repeat themselves for certain only with MKL_CBWR=COMPATIBLE). Checkpoints say which library
// multiplied (nn/matmul.h).
class Trainer {
 public:
  // Read from the options: steps, accumulate, the rates, AdamW's numbers, clip, when to validate and to log, seed.
  //
  // `ranks`: processes that train the same weights together, each with its part of every batch: what a step does is the
  // same for any number of them but for the order of sums. Everything here is collective then; the keeper's functions
  // are called in each of them. `shared_out`: so is the optimiser (AdamW).
  // `context_parts`: so many processes each share their sequences, every one with a part of each (models/relay.h).
  // InputError: the processes have no such groups, or the task's sequences cannot lie over several.
  Trainer(std::shared_ptr<Task> task, const TrainingOptions& options, const Ranks& ranks = {}, bool shared_out = false,
          int64_t context_parts = 0);

  // To begin with: another state than a fresh one. To go on: the checkpoint's, and then optimizer() has its moments; a
  // checkpoint of a run over other data: InputError.
  void begin_with(const TrainerState& state) { state_ = state; }
  void resume(const TrainerState& state);

  // Trains up to options.steps, or until told to stop. Either way the keeper then has where it stands. True: all steps
  // are done. A loss or gradient that is not finite: Failure that names the step; the last good checkpoint stays.
  bool run(const RunKeeper& keeper, const RunControl& control = {});

  const TrainerState& state() const { return state_; }
  const AdamW& optimizer() const { return optimizer_; }
  AdamW& optimizer() { return optimizer_; }

 private:
  struct Step {
    double loss = 0, rate = 0, gradient_norm = 0;
    bool stop = false;  // some process was told to
  };
  Step take_step(const RunKeeper& keeper, const RunControl& control);
  LearnedBatch accumulate_gradients();
  Turn turn(bool last);
  bool add_up(LearnedBatch& learned, bool stop) const;
  void require_finite(const char* what, double value, int64_t step, const RunKeeper& keeper) const;
  bool validation_due() const;
  bool validate(const RunKeeper& keeper, const RunControl& control);
  void log(const Step& step, const RunKeeper& keeper);

  std::shared_ptr<Task> task_;
  TrainingOptions options_;
  Ranks ranks_;
  AdamW optimizer_;
  GradientSum gradients_;
  std::unique_ptr<Relay> relay_;
  TrainerState state_;
  int64_t saved_step_ = 0, first_step_ = 0;  // of this session
  bool unsaved_ = true;
  double interval_seconds_ = 0;
  int64_t interval_tokens_ = 0;
};

}  // namespace cortado
