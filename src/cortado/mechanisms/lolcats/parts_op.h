// Operators between LoLCATs' softmax and its scan: features, blocks' sums, and the join of both parts.
#pragma once

#include "cortado/mechanisms/lolcats/op.h"

namespace cortado {

// φ of y [B,T,H,f] = x W: [softmax(y), softmax(-y)], at least `least`. x [B,T,H,d], W [H,d,f] -> [B,T,H,2f].
Tensor lolcats_features(const Tensor& x, const Tensor& weight, double least);

// phi_q, phi_k [B,H,n,w,F], v [B,H,n,w,V] -> [B,H,n,w,V]: a query reads Σ φ_k ⊗ v of its own block and all before.
Tensor lolcats_block_sums(const Tensor& phi_q, const Tensor& phi_k, const Tensor& v);

// join_linear (op.h), and with the far part read from sums [B,H,F,V+1] by phi_q [B,T,H,F].
Tensor lolcats_join(const SoftmaxPart& near, const Tensor& far, const Tensor& window_factor, LolcatsMixture mixture);
Tensor lolcats_join_sums(const SoftmaxPart& near, const Tensor& phi_q, const Tensor& sums, const Tensor& window_factor,
                         LolcatsMixture mixture);

}  // namespace cortado
