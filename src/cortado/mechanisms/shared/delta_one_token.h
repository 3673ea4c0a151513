// One token of DeltaNet, Gated DeltaNet and KDA between their maps; see one_token.h.
#pragma once

#include "cortado/mechanisms/shared/convolved.h"

namespace cortado {

struct DeltaHeads {
  int64_t heads, key_heads;  // of v and the state; of q and k
  int64_t keys, values;      // K, V: per head
  bool reflect;              // β in (0, 2)
};

// Whether delta_scan's step takes such heads and decays g [rows,1,H] or [rows,1,H,K].
bool takes_one_token(const DeltaHeads& heads, const OptionalTensor& g);

// The read o [rows,1,H,V] for the outputs [rows,1,...] of the linear maps, β before its sigmoid. Updates the
// convolutions' tails and "scan_state".
Tensor one_token_of(const DeltaHeads& heads, const ConvolvedQkv& maps, const Qkv& in, const Tensor& beta,
                    const OptionalTensor& g, SequenceState& state);

}  // namespace cortado
