// What happens when pairs leave LoLA's window, one pass for each sequence and head. Float32 on the CPU. No torch here.
#pragma once

#include "cortado/primitives/kernels/kernel.h"

namespace cortado::lola_kernel {

using kernels::Parallel;
using kernels::Timed;

// Something of every candidate, oldest first, a head's numbers side by side: of those in the cache [B,cached,H,·], then
// of those that leave the window [B,leaving,H,·].
struct Candidates {
  Timed cached, leaving;
};

// Of the candidates the `kept` (fewer than there are) that the sums [B,H,F,V+1], contiguous, answer worst,
// ‖φ(k)ᵀH / φ(k)ᵀs - v‖ (eq. 9; of equals the older), stay: new_keys, new_values [B,kept,H,·], oldest first. The others
// are added: new_sums = sums + Σ φ(k) ⊗ [v, 1].
struct Evict {
  int64_t batch, heads, cached, leaving, kept;
  int64_t features, keys, values;  // F, K, V
  float tie = 0;                   // score_tie()
  Candidates k, v, phi;
  const float* sums;
  Timed new_keys, new_values;
  float* new_sums;
};
void evict(const Evict& call, const Parallel& parallel);

}  // namespace cortado::lola_kernel
