// The training loop of all tasks: learning rates, accumulation, clipping, validation, checkpoints, stopping.
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

// How a run can be stopped, and whether it shows its progress.
struct RunControl {
  std::function<bool()> stop;  // asked after every step and during validation; true ends the run cleanly
  int64_t stop_at = -1;        // step after which to stop as if asked; -1: none
  bool progress = true;        // show a progress bar
};

// Callbacks that record what the loop does.
struct RunKeeper {
  std::string place;                                                  // where checkpoints are, for messages
  std::function<void(const Json& line)> log;                          // writes a line of metrics.jsonl
  std::function<void(const Validation& found, bool best)> validated;  // best: the best so far
  std::function<void()> checkpoint;  // saves the trained weights, the optimiser's moments and the state
};

// A step depends only on the trained weights, the moments, the seed and the state. So a resumed run equals one that was
// never stopped, bit for bit with the same program, machine and number of threads (MKL guarantees repeatable products
// only with MKL_CBWR=COMPATIBLE). Checkpoints record which library multiplied (nn/matmul.h).
class Trainer {
 public:
  // Reads from the options: steps, accumulate, learning rates, AdamW's settings, clip, intervals of validation and
  // logging, seed.
  //
  // `ranks`: processes that train the same weights together, each with its part of every batch. A step gives the same
  // result for any number of processes up to the order of sums. All calls are then collective, and the keeper's
  // functions are called in every process. `shared_out`: divides the optimiser's state among them (AdamW).
  // `context_parts`: that many processes share each sequence, each with a part of it (models/relay.h). Throws
  // InputError if the processes can't form such groups or the task's sequences can't be split.
  Trainer(std::shared_ptr<Task> task, const TrainingOptions& options, const Ranks& ranks = {}, bool shared_out = false,
          int64_t context_parts = 0);

  // `begin_with` sets a state other than a fresh one. `resume` sets a checkpoint's state; optimizer() must have its
  // moments by then. It throws InputError if the checkpoint's run used other data.
  void begin_with(const TrainerState& state) { state_ = state; }
  void resume(const TrainerState& state);

  // Trains up to options.steps or until asked to stop; in both cases the keeper has saved the final state. Returns true
  // if all steps are done. Throws Failure, naming the step, if a loss or gradient is not finite; the last good
  // checkpoint stays.
  bool run(const RunKeeper& keeper, const RunControl& control = {});

  const TrainerState& state() const { return state_; }
  const AdamW& optimizer() const { return optimizer_; }
  AdamW& optimizer() { return optimizer_; }

 private:
  struct Step {
    double loss = 0, rate = 0, gradient_norm = 0;
    bool stop = false;  // some process was asked to stop
  };
  Step take_step(const RunKeeper& keeper, const RunControl& control);
  LearnedBatch accumulate_gradients();
  BatchShare share(bool last);
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
