// What `cortado doctor` tries of whole models on a GPU: a token and a training step go by kernels that no operator has
// (nn/). Two layers of a mixer, as `cortado compare` has it, of 64 channels. An error is ‖y - right‖ / ‖right‖, right being
// the same model's in float32 on the CPU; allowed is twice that of bfloat16 on the CPU, and 2 %. Weights and tokens come from
// torch's default generator.
#pragma once

#include "cortado/bench/operators.h"

namespace cortado {

// Logits in bfloat16, of 40 tokens of a row at once and six more one by one: the worst of those six.
OperatorCheck check_tokens(const std::string& mixer, at::Device device);

// A training step in float32 under autocast to bfloat16: the worst parameter's gradient; of one that is far smaller than the
// whole gradient, over 6 % of the whole one's norm.
OperatorCheck check_training_step(const std::string& mixer, at::Device device);

}  // namespace cortado
