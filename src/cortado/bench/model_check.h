// `cortado doctor`'s checks of whole models on a GPU: a decoded token and a training step use kernels that no operator
// has (nn/). The models have two layers of a mixer, with the settings of `cortado compare`, and 64 channels. The error
// is ‖y - right‖ / ‖right‖, where `right` is the model's result in float32 on the CPU. The tolerance is 2 % plus twice
// the error of bfloat16 on the CPU. Weights and tokens come from torch's default generator.
#pragma once

#include "cortado/bench/operators.h"

namespace cortado {

// Checks logits in bfloat16: a prefill of 40 tokens per row, then six tokens one by one. The error is the worst of
// those six.
OperatorCheck check_tokens(const std::string& mixer, at::Device device);

// Checks the gradients of a training step in float32 under autocast to bfloat16. The error is the worst parameter's;
// each divisor is increased by 6 % of the norm of the whole gradient, for parameters whose gradient is far smaller.
OperatorCheck check_training_step(const std::string& mixer, at::Device device);

}  // namespace cortado
