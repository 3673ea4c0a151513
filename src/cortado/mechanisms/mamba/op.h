// The selective scan of Mamba.
#pragma once

#include "cortado/primitives/types.h"

namespace cortado {

// Operands of the scan: all float32, or all float64.
struct SelectiveScan {
  Tensor x, step;  // x_t and Δ_t [B,T,E]
  Tensor a;        // A < 0 [E,N]
  Tensor b, c;     // B_t, C_t [B,T,N]
};

// The selective scan of Mamba: h_t = exp(Δ_t A) ⊙ h_{t-1} + Δ_t x_t ⊗ B_t, y_t = h_t C_t, from the states start
// [B|rows,E,N]. Returns y [B,T,E] and the final states. Never stores the states of all tokens, T·E·N numbers: the
// kernel (kernel.h) keeps one in 32 tokens; without it time is cut into segments of about `segment_elements` states,
// which are recomputed for their gradients.
TensorTuple<2> selective_scan(const SelectiveScan& in, const Tensor& start, const OptionalTensor& cu_seqlens,
                              int64_t segment_elements = int64_t{1} << 21);

// The definition: a gated scan, token by token, with E heads, one value and N keys per head (q = C, k = B, v = Δx, g =
// ΔA).
Tensor selective_scan_reference(const SelectiveScan& in);

}  // namespace cortado
