// Scans over one part of a sequence, whichever process has the earlier parts.
#pragma once

#include "cortado/nn/batch.h"
#include "cortado/nn/state.h"

namespace cortado {

// The state that a gated scan over k [B,T,H,K], v [B,T,H,V] and g (as in gated_scan) continues from, given the state
// `start` [B,H,K,V] before the first part. A part maps the state S to diag(exp Σ_t g_t) S + Σ_t diag(exp Σ_{s>t} g_s)
// k_t ⊗ v_t.
Tensor state_before_part(const Tensor& k, const Tensor& v, const OptionalTensor& g, const Tensor& start,
                         const SequenceParts& parts);

// As state_before_part(), for a delta scan over k, v, beta and g (as in delta_scan). A part maps S to M S + own; M is
// what the scan makes of the identity if all values are zero.
Tensor delta_state_before_part(const Tensor& k, const Tensor& v, const Tensor& beta, const OptionalTensor& g,
                               const Tensor& start, const SequenceParts& parts);

// As state_before_part(), for a dplr_scan.
Tensor dplr_state_before_part(const Tensor& k, const Tensor& v, const Tensor& a, const Tensor& b, const Tensor& g,
                              const Tensor& start, const SequenceParts& parts);

// Arguments of a gated_scan that reads along the keys.
struct ScanInputs {
  Tensor q, k, v;
  OptionalTensor g = {};
  std::optional<double> scale = {};
  OptionalTensor bonus = {};
};
// Runs the scan from the state's tensor "scan_state" and stores the final state there. Returns o. If earlier tokens are
// in other processes, starts from their composed state.
Tensor scan_part(const ScanInputs& in, const Batch& batch, SequenceState* state);

}  // namespace cortado
