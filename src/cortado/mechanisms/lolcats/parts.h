// Attention in parts: softmax, and a linear part, under one denominator.
#pragma once

#include <tuple>

#include "cortado/mechanisms/lolcats/op.h"

namespace cortado {

// Softmax over some keys: its output, the log of its sum of exponentials, and its largest score.
struct SoftmaxPart {
  Tensor o, lse, row_max;  // [B,T,H,V], [B,T,H], [B,T,H]
};

// What window_attention returns, in a wide type.
SoftmaxPart softmax_part(const std::tuple<Tensor, Tensor, Tensor>& attention, at::ScalarType type);

// With the linear part: far [B,T,H,V+1], its numerator and denominator; window_factor [H]. No exponent is positive: in
// `gated` and `plain` the linear part's share of the whole is σ(log of its weight - log of the softmax part's).
Tensor join_linear(const SoftmaxPart& near, const Tensor& far, const Tensor& window_factor, LolcatsMixture mixture);

}  // namespace cortado
