// One token of DeltaNet, Gated DeltaNet and KDA between their maps; see one_token.h.
#pragma once

#include "cortado/mechanisms/shared/delta_op.h"

namespace cortado {

// Whether delta_scan's step takes such heads and decays g [rows,1,H] or [rows,1,H,K].
bool delta_takes_one_token(const DeltaHeads& heads, const OptionalTensor& g);

// The read o [rows,1,H,V] for the outputs [rows,1,...] of the linear maps, β before its sigmoid. Updates the
// convolutions' tails and "scan_state".
Tensor delta_one_token(const DeltaHeads& heads, const ConvolvedQkv& maps, const Qkv& in, const Tensor& beta,
                       const OptionalTensor& g, SequenceState& state);

}  // namespace cortado
