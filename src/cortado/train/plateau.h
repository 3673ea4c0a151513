// A learning rate that gets smaller when the validation loss stops falling: that of conversions.
#pragma once

#include <limits>

#include "cortado/base/json.h"

namespace cortado {

// torch.optim.lr_scheduler.ReduceLROnPlateau (mode "min", relative threshold 1e-4): after more than `patience`
// evaluations in a row without a new best, rate = max(rate · factor, minimum).
struct Plateau {
  double factor = 0.1;
  int64_t patience = 10;
  double minimum = 1e-5;

  double rate = 1e-2;
  double best = std::numeric_limits<double>::infinity();
  int64_t waited = 0;  // evaluations since

  void evaluated(double loss);
};

}  // namespace cortado
