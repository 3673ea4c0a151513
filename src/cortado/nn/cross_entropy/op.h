// The loss of a language model's head without its logits in memory.
#pragma once

#include "cortado/primitives/types.h"

namespace cortado {

// Mean over the counted tokens (targets >= 0; negative = not counted) of -log softmax(c·tanh(z/c))[target],
// z = hidden Wᵀ + bias, c = softcap (none = z itself), in nats; float32, or float64 for float64 input. No token
// counted: 0.
//
// hidden [N, D], weight [V, D], bias [V], targets int64 [N]. The logits exist for a few rows at a time, in the forward
// pass, which also forms the gradients: memory is O(N·D + V·D) and not O(N·V). `chunk`: logits in memory at a time
// (0: 64 MiB of float32; on a GPU, which few rows do not fill, 256). Differentiating twice is an error.
Tensor linear_cross_entropy(const Tensor& hidden, const Tensor& weight, const OptionalTensor& bias,
                            const Tensor& targets, std::optional<double> softcap = {}, int64_t chunk = 0);

}  // namespace cortado
