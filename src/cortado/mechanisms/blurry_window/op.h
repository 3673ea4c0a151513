// blurry_window: softmax attention over N slots that hold a window of keys and values, blurred by a Dirichlet kernel
// (BLA).
#pragma once

#include "cortado/mechanisms/shared/slots.h"

namespace cortado {

struct BlurrySizes {
  int64_t slots = 33;   // N, odd: N = 2M + 1 for the modes m = 0..M
  int64_t period = 33;  // P >= N tokens; P/N is the token resolution
};
// InputError if slots are even or period < slots.
void check_blurry(const BlurrySizes& sizes);

// w_t[n] = D(t - nP/N) for every slot n, t counted from 0: [..., N] for integer times [...], in `type`. D is 1 at 0, 0
// at the other multiples of P/N, and has the period P: w has it in t.
Tensor blurry_weights(const Tensor& times, const BlurrySizes& sizes, at::ScalarType type);

struct BlurryOptions {
  BlurrySizes sizes = {};
  bool decay = true;  // K^_t = diag(1 - w_t) K^_{t-1} + w_t ⊗ k_t; false: K^_{t-1} + w_t ⊗ k_t
  std::optional<double> scale = {};
  OptionalTensor key_state = {}, value_state = {};  // [B|N,H,N,K], [B|N,H,N,V]: together or not at all
  OptionalTensor position = {};                     // int64 [B|N]: tokens seen before this call, default 0
  OptionalTensor cu_seqlens = {};
  OptionalTensor table = {};  // [P,N]: blurry_weights of one period, where it is at hand
};

// o_t = softmax_n(K^_t q_t · scale + mask) V^_t over the slots that some token has reached: slot n is hidden while nP/N
// > t. q, k [B,T,H,K], v [B,T,H,V].
SlotResult blurry_window(const Tensor& q, const Tensor& k, const Tensor& v, const BlurryOptions& options);

// The definition, token by token, the kernel as its sum of cosines; dense, from zero; differentiable by autograd.
Tensor blurry_window_reference(const Tensor& q, const Tensor& k, const Tensor& v, const BlurrySizes& sizes, bool decay,
                               double scale);

}  // namespace cortado
