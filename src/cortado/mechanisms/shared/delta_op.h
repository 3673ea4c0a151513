// What delta rules compute between their maps of x and the norm.
#pragma once

#include "cortado/mechanisms/shared/convolved.h"
#include "cortado/nn/batch.h"

namespace cortado {

struct DeltaHeads {
  int64_t heads, key_heads;  // of v and the state; of q and k
  int64_t keys, values;      // K, V: per head
  bool reflect;              // β in (0, 2) instead of (0, 1), so that the transition may have negative eigenvalues
  int64_t steps = 1;         // delta steps per token
};

// β [B,T,steps·H] of the map's output.
Tensor delta_rate(const DeltaHeads& heads, const Tensor& mapped);

// Convolves the mapped q, k and v [B,T,...] and scales q and k to length 1. Returns q and k [B,T,Hkey,K] and v
// [B,T,H,V], where T counts the steps of all tokens for k and v. Updates the convolutions' tails.
Qkv delta_operands(const DeltaHeads& heads, const ConvolvedQkv& maps, const Qkv& mapped, const Batch& batch,
                   SequenceState* state);

// Runs the delta scan on delta_operands() with the rates of `beta` (before delta_rate) and the decay g, once per token.
// Returns o [B,T,H,V]; updates the convolutions' tails and "scan_state".
Tensor delta_read(const DeltaHeads& heads, const ConvolvedQkv& maps, const Qkv& mapped, const Tensor& beta,
                  const OptionalTensor& g, const Batch& batch, SequenceState* state);

}  // namespace cortado
