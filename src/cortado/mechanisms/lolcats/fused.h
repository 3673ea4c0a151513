// The functions of kernel.h on tensors, with their derivatives (the first only).
#pragma once

#include "cortado/mechanisms/lolcats/op.h"

namespace cortado::lolcats_fused {

// Whether these are non-empty float32 tensors on the CPU, and kernels enabled.
bool takes(std::initializer_list<Tensor> tensors);

// φ of y [..., f] -> [..., 2f], max([softmax(y), softmax(-y)], least).
Tensor features(const Tensor& y, double least);

// φ of x W, without a derivative: x [B,T,H,d], W [H,d,f] -> [B,T,H,2f].
Tensor mapped_features(const Tensor& x, const Tensor& weight, double least);

// phi_q, phi_k [B,H,n,w,F], v [B,H,n,w,V] -> [B,H,n,w,V]: a query reads Σ φ_k ⊗ v of its own block and all before.
Tensor block_sums(const Tensor& phi_q, const Tensor& phi_k, const Tensor& v);

// join_linear.
Tensor join(const SoftmaxPart& near, const Tensor& far, const Tensor& window_factor, LolcatsMixture mixture);

// The same without a derivative, where far is what phi_q [B,T,H,F] reads from sums [B,H,F,V+1].
Tensor join_sums(const SoftmaxPart& near, const Tensor& phi_q, const Tensor& sums, const Tensor& window_factor,
                 LolcatsMixture mixture);

}  // namespace cortado::lolcats_fused
