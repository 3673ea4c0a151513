// The learning rate of a step.
#pragma once

#include "cortado/train/options.h"

namespace cortado {

// nanoGPT's schedule, steps counted from 0. While step < W (warm-up): rate · (step + 1) / (W + 1). After that, with
// x = (step - W) / (decay_steps - W) in [0, 1]: minimum + (rate - minimum) · c(x), where c(x) is (1 + cos πx) / 2
// (cosine), 1 - x (linear) or 1 (constant; no minimum). Past decay_steps: minimum.
double learning_rate(const TrainingOptions& options, int64_t step);

}  // namespace cortado
