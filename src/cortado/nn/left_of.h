// What decays leave of a part of a sequence.
#pragma once

#include "cortado/primitives/types.h"

namespace cortado {

// exp Σ_{s>=t} g_s for t = 0..T: what the tokens from t on leave of what was there before them, at T 1. Logarithms g
// [B,T,...], -inf allowed -> [B,T+1,...].
inline Tensor left_of_decays(const Tensor& g) {
  return at::cat({g.flip(1).cumsum(1).flip(1).exp(), at::ones_like(g.narrow(1, 0, 1))}, 1);
}

}  // namespace cortado
