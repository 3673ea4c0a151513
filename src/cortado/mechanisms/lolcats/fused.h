// The functions of kernel.h on tensors, with their derivatives (the first only).
#pragma once

#include <ATen/ATen.h>

#include "cortado/mechanisms/lolcats/op.h"

namespace cortado::lolcats_fused {

// Whether these are non-empty float32 tensors on the CPU, and kernels enabled.
bool takes(std::initializer_list<Tensor> tensors);

// φ of y [..., f] -> [..., 2f], max([softmax(y), softmax(-y)], least).
Tensor features(const Tensor& y, double least);

// near [B,T,H,V], lse and row_max [B,T,H], far [B,T,H,V+1], window_factor [H] -> [B,T,H,V].
Tensor join(const Tensor& near, const Tensor& lse, const Tensor& row_max, const Tensor& far,
            const Tensor& window_factor, LolcatsMixture mixture);

}  // namespace cortado::lolcats_fused
