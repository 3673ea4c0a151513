// The step in which pairs leave LoLA's window: one pass per sequence and head, float32 on the CPU. Does not include
// torch.
#pragma once

#include "cortado/primitives/kernels/kernel.h"

namespace cortado::lola_kernel {

using kernels::Parallel;
using kernels::Timed;

// One tensor over all candidates, oldest first: the cache's pairs [B,cached,H,·], then the pairs that leave the window
// [B,leaving,H,·]. The numbers of one head are contiguous.
struct Candidates {
  Timed cached, leaving;
};

// Keeps the `kept` candidates (fewer than there are) that the sums [B,H,F,V+1] (contiguous) answer worst, by ‖φ(k)ᵀH /
// φ(k)ᵀs - v‖ (eq. 9); among equals the older stays. They go to new_keys and new_values [B,kept,H,·], oldest first. The
// others are added: new_sums = sums + Σ φ(k) ⊗ [v, 1].
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
