// blurry_window: softmax attention over N slots that hold a window of keys and values, blurred by a Dirichlet kernel
// (BLA).
#pragma once

#include "cortado/mechanisms/shared/slots.h"

namespace cortado {

struct BlurrySizes {
  int64_t slots = 33;   // N, odd: N = 2M + 1 for the modes m = 0..M
  int64_t period = 33;  // P >= N tokens; P/N is the token resolution
};
// Throws InputError if slots is even or not positive, if period < slots, or if slots > 2^20 or period > 2^40.
void check_blurry(const BlurrySizes& sizes);

// w_t[n] = D(t - nP/N) for all slots n, t counted from 0. Integer times [...] give [..., N] in `type`. D is 1 at 0 and
// 0 at the other multiples of P/N. D has the period P, and so has w in t.
Tensor blurry_weights(const Tensor& times, const BlurrySizes& sizes, at::ScalarType type);

struct BlurryOptions {
  BlurrySizes sizes = {};
  bool decay = true;  // K^_t = diag(1 - w_t) K^_{t-1} + w_t ⊗ k_t; false: K^_{t-1} + w_t ⊗ k_t
  std::optional<double> scale = {};
  OptionalTensor key_state = {}, value_state = {};  // [B|N,H,N,K], [B|N,H,N,V]: both or neither
  OptionalTensor position = {};                     // int64 [B|N]: tokens seen before this call, default 0
  OptionalTensor cu_seqlens = {};
  OptionalTensor table = {};  // [P,N]: blurry_weights of one period; computed if it is not given
};

// o_t = softmax_n(K^_t q_t · scale + mask) V^_t. The mask hides slot n while nP/N > t, before the first token reaches
// it. q, k [B,T,H,K], v [B,T,H,V]; o [B,T,H,V] has v's type.
SlotResult blurry_window(const Tensor& q, const Tensor& k, const Tensor& v, const BlurryOptions& options);

// The definition: token by token, D as its sum of cosines; dense, from the zero state; differentiable by autograd.
Tensor blurry_window_reference(const Tensor& q, const Tensor& k, const Tensor& v, const BlurrySizes& sizes, bool decay,
                               double scale);

}  // namespace cortado
