// One softmax over a window and the latents, and the sum of both parts, by kernels for GPUs.
#pragma once

#include "cortado/primitives/cuda/machine.h"
#include "cortado/primitives/types.h"

namespace cortado::latent {

// Whether they compute this: bfloat16 logits [B,T,H,L+1] and parts [B,T,H,V] on a GPU that has kernels, L and V up to 128.
bool gpu_mixes(const Tensor& logits, const Tensor& v);

struct MixWeights {
  Tensor first;  // float32 [B,T,H]
  Tensor p;      // [B,T,H,L]
};

// softmax(logits).
MixWeights mix_weights_on_gpu(const Tensor& logits, cuda::Machine& machine);
Tensor mix_weights_gradient_on_gpu(const MixWeights& weights, const Tensor& grad_first, const Tensor& grad_p,
                                   cuda::Machine& machine);

// far + first near, and of it the derivatives by first and near.
Tensor mix_on_gpu(const Tensor& far, const Tensor& near, const Tensor& first, cuda::Machine& machine);
std::pair<Tensor, Tensor> mix_gradient_on_gpu(const Tensor& grad_o, const Tensor& near, const Tensor& first,
                                              cuda::Machine& machine);

// The same, differentiable, where the tensors are.
MixWeights mix_weights(const Tensor& logits);
Tensor mix(const Tensor& far, const Tensor& near, const Tensor& first);

}  // namespace cortado::latent
