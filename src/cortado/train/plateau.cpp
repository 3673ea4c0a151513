#include "cortado/train/plateau.h"

#include <algorithm>

namespace cortado {

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
