// Learning rates: a schedule by step, and one that decays when the validation loss stops falling, for conversions.
#pragma once

#include <limits>

#include "cortado/train/options.h"

namespace cortado {

// nanoGPT's schedule, steps counted from 0. While step < W (warm-up): rate · (step + 1) / (W + 1). After that, with
// x = (step - W) / (decay_steps - W) in [0, 1]: minimum + (rate - minimum) · c(x), where c(x) is (1 + cos πx) / 2
// (cosine), 1 - x (linear) or 1 (constant; no minimum). Past decay_steps: minimum.
double learning_rate(const TrainingOptions& options, int64_t step);

// torch.optim.lr_scheduler.ReduceLROnPlateau (mode "min", relative threshold 1e-4): after more than `patience`
// evaluations in a row without a new best, rate = max(rate · factor, minimum).
struct Plateau {
  double factor = 0.1;
  int64_t patience = 10;
  double minimum = 1e-5;

  double rate = 1e-2;
  double best = std::numeric_limits<double>::infinity();
  int64_t waited = 0;  // evaluations since the best one

  void evaluated(double loss);
};

}  // namespace cortado
