// The kernel behind the form of blocked.h, for torch's tensors.
#pragma once

#include "cortado/primitives/window_attention/blocked.h"

namespace cortado::window {

// Whether the kernel computes this: float32 or 16-bit types on the CPU. The backward also wants more queries than
// decoding has, and of an extra set no gradient of row_max.
bool kernel_takes(const BlockedInputs& inputs);
bool backward_kernel_takes(const BlockedInputs& inputs, const Tensor& grad_row_max);

// As blocked_forward and blocked_backward.
BlockedOutputs forward_by_kernel(const BlockedInputs& inputs);
BlockedGradients backward_by_kernel(const BlockedInputs& inputs, const BlockedOutputs& outputs, const Tensor& grad_o,
                                    const Tensor& grad_lse, const Tensor& grad_row_max);

}  // namespace cortado::window
