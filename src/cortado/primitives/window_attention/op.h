// window_attention: softmax attention over a window of keys plus an optional extra set, with its log-sum-exp.
#pragma once

#include "cortado/primitives/types.h"

namespace cortado {

struct WindowAttentionOptions {
  std::optional<int64_t> window = {};  // keys per query, including its own; none = all
  bool causal = true;                  // false: all keys, or |i - j| < window
  std::optional<double> scale = {};    // default K^-1/2
  std::optional<double> softcap = {};  // c·tanh(s/c), after scaling
  OptionalTensor extra_k = {};         // [B|N,E,H,K]: extra keys that every query sees
  OptionalTensor extra_v = {};         // [B|N,E,H,V]
  OptionalTensor extra_mask = {};      // bool [B|N,E] or [B|N,H,E], true = visible
  OptionalTensor cu_seqlens = {};      // packed sequences, B = 1
  OptionalTensor cu_seqlens_k = {};    // bounds on the keys' axis, default cu_seqlens
  // int64 [B], dense form only: earlier keys are not valid (a right-aligned cache that is not yet full).
  OptionalTensor first_key = {};
};

// q [B,Tq,H,K], k [B,Tk,Hs,K], v [B,Tk,Hs,V]; queries are aligned to the END of the keys. Memory is O(T). Returns o
// [B,Tq,H,V] (v's type), lse [B,Tq,H] (log of the sum of exp over all visible keys) and row_max [B,Tq,H] (the largest
// score). A query that sees no key has o = 0 and lse = row_max = -inf.
TensorTuple<3> window_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                const WindowAttentionOptions& options = {});

// The definition: the full masked score matrix; any dtype, differentiable by autograd.
TensorTuple<3> window_attention_reference(const Tensor& q, const Tensor& k, const Tensor& v,
                                          const WindowAttentionOptions& options = {});

}  // namespace cortado
