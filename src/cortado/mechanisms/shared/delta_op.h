// What DeltaNet, Gated DeltaNet and KDA compute between their maps of x and the norm.
#pragma once

#include "cortado/mechanisms/shared/convolved.h"
#include "cortado/nn/batch.h"

namespace cortado {

struct DeltaHeads {
  int64_t heads, key_heads;  // of v and the state; of q and k
  int64_t keys, values;      // K, V: per head
  bool reflect;              // β in (0, 2) instead of (0, 1), so that the transition may have negative eigenvalues
};

// β [B,T,H] of the map's output.
Tensor delta_rate(const DeltaHeads& heads, const Tensor& mapped);

// Convolves the mapped q, k and v [B,T,...], scales q and k to length 1, and runs the delta scan with the rates of
// `beta` (before delta_rate) and the decay g. Returns o [B,T,H,V]; updates the convolutions' tails and "scan_state".
Tensor delta_read(const DeltaHeads& heads, const ConvolvedQkv& maps, const Qkv& mapped, const Tensor& beta,
                  const OptionalTensor& g, const Batch& batch, SequenceState* state);

}  // namespace cortado
