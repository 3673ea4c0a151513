// The training loop.
#pragma once

#include <functional>
#include <memory>

#include "cortado/models/language_model.h"
#include "cortado/train/data.h"
#include "cortado/train/metrics.h"
#include "cortado/train/optimizer.h"
#include "cortado/train/options.h"
#include "cortado/train/resume.h"
#include "cortado/train/run_folder.h"

namespace cortado {

struct RunControl {
  std::function<bool()> stop;  // asked after every step and during validation: true ends the run well
  int64_t stop_at = -1;        // a step after which to end as if asked; -1: none
  bool progress = true;        // a bar
};

// Trains a model and keeps its run's folder up to date.
//
//   Trainer trainer(model, options, batches, validation, folder, about);
//   trainer.resume();                       // or not
//   bool done = trainer.run();
//
// What a step does depends on nothing but the weights, the moments, the seed and the step's number, so a resumed run
// equals one that was never stopped, bit for bit on the same machine with the same number of threads.
class Trainer {
 public:
  // `validation` may be null or too short to predict anything: then nothing is validated and "best" is the last.
  // `about`: the run's settings, kept in the checkpoints. Its folder must exist and be locked.
  Trainer(std::shared_ptr<LanguageModel> model, const TrainingOptions& options, std::shared_ptr<BatchSource> batches,
          std::shared_ptr<const TokenFile> validation, RunFolder folder, Json about);

  // Goes on from the folder's checkpoint; from the start where there is none.
  void resume();

  // Trains up to options.steps, or until told to stop. Either way the folder then holds where it stands. True: all
  // steps are done. A loss or gradient that is not finite: Failure that names the step; the last good checkpoint stays.
  bool run(const RunControl& control = {});

  const TrainerState& state() const { return state_; }

 private:
  struct Step {
    double loss = 0, rate = 0, gradient_norm = 0;
  };
  Step take_step();
  double accumulate_gradients();
  void require_finite(const char* what, double value) const;
  bool validation_due() const;
  bool validate(const std::function<bool()>& stop);
  void log(const Step& step);
  void checkpoint();

  std::shared_ptr<LanguageModel> model_;
  TrainingOptions options_;
  std::shared_ptr<BatchSource> batches_;
  std::shared_ptr<const TokenFile> validation_;
  RunFolder folder_;
  Json about_;
  AdamW optimizer_;
  TrainerState state_;
  std::unique_ptr<MetricsFile> metrics_;
  int64_t saved_step_ = -1;
  double interval_seconds_ = 0;
  int64_t interval_tokens_ = 0;
};

}  // namespace cortado
