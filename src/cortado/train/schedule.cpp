#include "cortado/train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace cortado {

double learning_rate(const TrainingOptions& options, int64_t step) {
  const double peak = options.learning_rate;
  if (step < options.warmup) return peak * double(step + 1) / double(options.warmup + 1);
  if (options.schedule == ScheduleKind::kConstant) return peak;
  if (step >= options.decay_steps) return options.minimum_rate;
  const double x = double(step - options.warmup) / double(options.decay_steps - options.warmup);
  const double remaining =
      options.schedule == ScheduleKind::kCosine ? 0.5 * (1.0 + std::cos(std::numbers::pi * x)) : 1.0 - x;
  return options.minimum_rate + (peak - options.minimum_rate) * remaining;
}

void Plateau::evaluated(double loss) {
  constexpr double kThreshold = 1e-4, kLeastChange = 1e-8;
  if (loss < best * (1 - kThreshold)) {
    best = loss;
    waited = 0;
    return;
  }
  if (++waited <= patience) return;
  waited = 0;
  const double smaller = std::max(rate * factor, minimum);
  if (rate - smaller > kLeastChange) rate = smaller;
}

}  // namespace cortado
