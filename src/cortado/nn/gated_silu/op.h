// The gated SiLU silu(gate) ⊙ up of a gated feed-forward, as an operator.
#pragma once

#include "cortado/primitives/types.h"

namespace cortado {

class Linear;

// gate, up [..., F] -> [..., F]. Differentiable once.
Tensor gated_silu(const Tensor& gate, const Tensor& up);

// silu(x W_gateᵀ + b_gate) ⊙ (x W_upᵀ + b_up): x [..., D], two maps D -> F.
Tensor gated_silu(const Tensor& x, const Linear& gate, const Linear& up);

}  // namespace cortado
