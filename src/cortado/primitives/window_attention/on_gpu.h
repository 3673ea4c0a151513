// Window attention by GPU kernels.
#pragma once

#include "cortado/primitives/cuda/machine.h"
#include "cortado/primitives/window_attention/inputs.h"
#include "cortado/primitives/window_attention/op.h"

namespace cortado::window {

// Whether the kernels compute this: 16-bit tensors of one type on a GPU on which kernels can run, K and V multiples of
// 8 up to 128, no extra set, no softcap. There is no kernel for a gradient of row_max.
bool gpu_takes(const Tensor& q, const Tensor& k, const Tensor& v, const WindowAttentionOptions& options);

// Compute as forward_by_aten and backward_by_aten (inputs.h). `parts`: parts of the keys, if a row has up to 64 queries
// and is not packed; 0: as many as fill the GPU.
AttentionOutputs forward_on_gpu(const Tensor& q, const Tensor& k, const Tensor& v,
                                const WindowAttentionOptions& options, cuda::Machine& machine, int64_t parts = 0);
struct OutputGradients {
  const Tensor &o, &lse;  // lse may be undefined
};
InputGradients backward_on_gpu(const Tensor& q, const Tensor& k, const Tensor& v, const WindowAttentionOptions& options,
                               const AttentionOutputs& outputs, const OutputGradients& grads, cuda::Machine& machine);

}  // namespace cortado::window
