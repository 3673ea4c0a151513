// macchiato: one softmax over L + 1 states. State 0 is sliding-window attention, 1..L are Latte's (Latte-Macchiato eq.
// 15-17).
#pragma once

#include "cortado/mechanisms/latte/op.h"
#include "cortado/primitives/window_attention/past.h"

namespace cortado {

// The window's options (its size includes the current token: the paper's 128 is 129 here), and the state of Latte's
// scan.
struct MacchiatoOptions : WindowAttentionOptions {
  LatteState start = {};
};

// query_logits [B,T,H,L+1] (column 0: the window), key_logits [B,T,H,L], v [B,T,H,V] (used by both parts), window_q
// [B,T,H,K]. `window` holds the past keys and values, of which the last window - 1 count, and then this call's keys
// [B,T,H,K] and v. Throws InputError for shapes that do not fit.
LatteResult macchiato(const Tensor& query_logits, const Tensor& key_logits, const Tensor& v, const Tensor& window_q,
                      const JoinedKeys& window, const MacchiatoOptions& options);

// The definition by two T x T matrices; dense, from the zero state, differentiable by autograd.
Tensor macchiato_reference(const Tensor& query_logits, const Tensor& key_logits, const Tensor& v,
                           const Tensor& window_q, const Tensor& window_k, const WindowAttentionOptions& options);

}  // namespace cortado
