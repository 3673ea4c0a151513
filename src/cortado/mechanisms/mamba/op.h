// The selective scan of Mamba.
#pragma once

#include "cortado/primitives/types.h"

namespace cortado {

// All float32, or all float64.
struct SelectiveScan {
  Tensor x, step;  // x_t and Δ_t [B,T,E]
  Tensor a;        // A < 0 [E,N]
  Tensor b, c;     // B_t, C_t [B,T,N]
};

// h_t = exp(Δ_t A) ⊙ h_{t-1} + Δ_t x_t ⊗ B_t, y_t = h_t C_t; start [B|rows,E,N]. Returns y [B,T,E] and the last h.
// The states of all tokens, T·E·N numbers, are never there at once, nor kept for the backward: a kernel (kernel.h)
// keeps one in 32 tokens; without it time is cut into segments of about `segment_elements` states, each computed again
// when its gradient is asked for.
TensorTuple<2> selective_scan(const SelectiveScan& in, const Tensor& start, const OptionalTensor& cu_seqlens,
                              int64_t segment_elements = int64_t{1} << 21);

// The definition: a gated scan, token by token, with E heads of one value and N keys (q = C, k = B, v = Δx, g = ΔA).
Tensor selective_scan_reference(const SelectiveScan& in);

}  // namespace cortado
