// A scan of one part of a sequence, whichever process has the parts before it.
#pragma once

#include "cortado/nn/batch.h"
#include "cortado/nn/state.h"

namespace cortado {

// The state that a gated scan of k [B,T,H,K], v [B,T,H,V] and g (of gated_scan) goes on from, `start` [B,H,K,V] being that
// of the first part: a part makes diag(exp Σ_t g_t) S + Σ_t diag(exp Σ_{s>t} g_s) k_t ⊗ v_t of what it begins with.
Tensor state_before_part(const Tensor& k, const Tensor& v, const OptionalTensor& g, const Tensor& start,
                         const SequenceParts& parts);

// The same of a delta scan of k, v, beta and g (of delta_scan): a part makes M S + own of what it begins with, M what it
// makes of the identity where nothing is written.
Tensor delta_state_before_part(const Tensor& k, const Tensor& v, const Tensor& beta, const OptionalTensor& g,
                               const Tensor& start, const SequenceParts& parts);

// gated_scan, read along the keys, from the state's tensor `name`, which becomes what comes out: o. Where the tokens
// before are other processes', from what those leave.
Tensor scan_part(const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& g,
                 std::optional<double> scale, const OptionalTensor& bonus, const Batch& batch, SequenceState* state,
                 const std::string& name = "scan_state");

}  // namespace cortado
