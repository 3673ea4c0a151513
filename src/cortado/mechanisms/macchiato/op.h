// macchiato: one softmax over L + 1 states; state 0 is sliding-window attention, 1..L are Latte's (Latte-Macchiato eq.
// 15-17).
#pragma once

#include "cortado/mechanisms/latte/op.h"
#include "cortado/primitives/window_attention/past.h"

namespace cortado {

// The window's (keys including self: the paper's 128 is 129 here), and where Latte's scan starts.
struct MacchiatoOptions : WindowAttentionOptions {
  LatteState start = {};
};

// query_logits [B,T,H,L+1] (column 0: the window), key_logits [B,T,H,L], v [B,T,H,V] (shared), window_q [B,T,H,K];
// `window` holds this call's keys [B,T,H,K] and v, after those of the past of which the last window - 1 matter.
LatteResult macchiato(const Tensor& query_logits, const Tensor& key_logits, const Tensor& v, const Tensor& window_q,
                      const JoinedKeys& window, const MacchiatoOptions& options);

// The definition, dense, from zero: two T x T matrices; differentiable by autograd.
Tensor macchiato_reference(const Tensor& query_logits, const Tensor& key_logits, const Tensor& v,
                           const Tensor& window_q, const Tensor& window_k, const WindowAttentionOptions& options);

}  // namespace cortado
