// The functions of kernel.h on tensors, with first derivatives.
#pragma once

#include "cortado/mechanisms/lolcats/op.h"

namespace cortado::lolcats_fused {

// Whether these are non-empty float32 tensors on the CPU and kernels are enabled.
bool takes(std::initializer_list<Tensor> tensors);

// φ of y [..., f]: [..., 2f] = max([softmax(y), softmax(-y)], least).
Tensor features(const Tensor& y, double least);

// Without a derivative: φ of x W, with x [B,T,H,d] and W [H,d,f]: [B,T,H,2f].
Tensor mapped_features(const Tensor& x, const Tensor& weight, double least);

// Each query reads Σ φ_k ⊗ v of its own block and all earlier ones: phi_q, phi_k [B,H,n,w,F], v [B,H,n,w,V] ->
// [B,H,n,w,V].
Tensor block_sums(const Tensor& phi_q, const Tensor& phi_k, const Tensor& v);

// As join_linear().
Tensor join(const SoftmaxPart& near, const Tensor& far, const Tensor& window_factor, LolcatsMixture mixture);

// Without a derivative: as join(), with far = what phi_q [B,T,H,F] reads from sums [B,H,F,V+1].
Tensor join_sums(const SoftmaxPart& near, const Tensor& phi_q, const Tensor& sums, const Tensor& window_factor,
                 LolcatsMixture mixture);

}  // namespace cortado::lolcats_fused
