// RWKV's token shift.
#pragma once

#include "cortado/mechanisms/shared/heads.h"
#include "cortado/primitives/short_conv/op.h"

namespace cortado {

// y_t = x_{t-1} for x [B,T,D], with `start` [rows,1,D] (default 0) before the first token. Also returns the last x,
// [rows,1,D]. Implemented as a short convolution with the taps (1, 0), which handles packed sequences and gradients.
inline TensorTuple<2> shift(const Tensor& x, const OptionalTensor& start, const OptionalTensor& cu_seqlens) {
  const Tensor taps = at::zeros({x.size(2), 2}, x.options().requires_grad(false));
  taps.select(1, 0).fill_(1);
  return short_conv(x, taps, {}, "none", start, cu_seqlens);
}

// x_{t-1}. The state's "shift" [rows,1,D] holds the last x of the sequence so far.
inline Tensor previous(const Tensor& x, const Batch& batch, SequenceState* state) {
  auto [before, last] = shift(x, batch.tail_before(x, start_of(state, "shift")), batch.cu_seqlens);
  keep(state, {{"shift", last}});
  return before;
}

inline Tensor previous_reference(const Tensor& x) {
  return at::cat({at::zeros_like(x.narrow(1, 0, 1)), x.narrow(1, 0, x.size(1) - 1)}, 1);
}

inline void declare_shift(StateLayout& layout, int64_t dim) { layout.tail("shift", {1, dim}); }

// A layer's relative depth, for initial values: ratio goes from 0 to 1, rest from 1 to almost 0.
struct Depth {
  double ratio, rest;
  explicit Depth(const MixerContext& context)
      : ratio(static_cast<double>(context.layer) / static_cast<double>(std::max<int64_t>(1, context.layers - 1))),
        rest(1.0 - static_cast<double>(context.layer) / static_cast<double>(context.layers)) {}
};

// ramp: 0, 1/(n-1), ..., 1 over n channels. zigzag: (i + 1) mod 3 - 1 for channel i, that is 0, 1, -1, 0, 1, ...
inline Tensor ramp(int64_t n) { return at::arange(n, at::kFloat) / static_cast<double>(std::max<int64_t>(1, n - 1)); }
inline Tensor zigzag(int64_t n) { return (at::arange(n, at::kFloat) + 1).remainder(3) - 1; }

}  // namespace cortado
