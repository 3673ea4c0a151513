// The loss of a language model's head, computed without holding all logits in memory.
#pragma once

#include "cortado/primitives/types.h"

namespace cortado {

// Returns the mean of -log softmax(c·tanh(z/c))[target] over the counted tokens (targets >= 0; negative = not counted),
// in nats. z = hidden Wᵀ + bias, c = softcap (none: z itself). float32, or float64 for float64 input; 0 if no token is
// counted.
//
// hidden [N, D], weight [V, D], bias [V], targets int64 [N]. The forward computes the logits a few rows at a time and
// also forms the gradients from them, so memory is O(N·D + V·D) instead of O(N·V). `chunk`: logits in memory at a time
// (0: 64 MiB of float32; 256 MiB on a GPU, which few rows do not fill). Differentiating twice is an error.
Tensor linear_cross_entropy(const Tensor& hidden, const Tensor& weight, const OptionalTensor& bias,
                            const Tensor& targets, std::optional<double> softcap = {}, int64_t chunk = 0);

}  // namespace cortado
