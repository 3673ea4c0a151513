#include "cortado/mechanisms/shared/delta_op.h"

#include "cortado/mechanisms/shared/delta_one_token.h"
#include "cortado/mechanisms/shared/heads.h"
#include "cortado/mechanisms/shared/one_token.h"
#include "cortado/mechanisms/shared/part_scan.h"
#include "cortado/nn/autocast.h"
#include "cortado/nn/norm/op.h"
#include "cortado/primitives/choice.h"
#include "cortado/primitives/delta_scan/op.h"

namespace cortado {
namespace {

// x·rsqrt(Σx² + 1e-6) in float32 or float64: an RMS norm with a constant weight.
Tensor l2_normalized(const Tensor& x) {
  const Tensor wide = widen(x);
  const auto size = static_cast<double>(x.size(-1));
  const Tensor weight = at::full({x.size(-1)}, 1 / std::sqrt(size), wide.options().requires_grad(false));
  return rms_norm(wide, weight, 1e-6 / size, 1);
}

Tensor read_by_scan(const DeltaHeads& heads, const Qkv& convolved, const Tensor& beta, const OptionalTensor& g,
                    const Batch& batch, SequenceState* state) {
  const Tensor q = for_products(l2_normalized(split_heads(convolved.q, heads.key_heads))),
               k = for_products(l2_normalized(split_heads(convolved.k, heads.key_heads))),
               v = for_products(split_heads(convolved.v, heads.heads)), rate = delta_rate(heads, beta);
  OptionalTensor start = start_of(state, "scan_state");
  if (batch.parts) start = delta_state_before_part(k, v, rate, g, *start, *batch.parts);
  auto [o, last] = delta_scan(q, k, v, rate, g, {}, start, batch.cu_seqlens);
  keep(state, {{"scan_state", last}});
  return o;
}

}  // namespace

Tensor delta_rate(const DeltaHeads& heads, const Tensor& mapped) {
  const Tensor rate = widen(mapped).sigmoid();
  return heads.reflect ? rate * 2 : rate;
}

Tensor delta_read(const DeltaHeads& heads, const ConvolvedQkv& maps, const Qkv& mapped, const Tensor& beta,
                  const OptionalTensor& g, const Batch& batch, SequenceState* state) {
  const bool convolves = maps.q.taps() > 0;
  const auto takes_all = [&] {
    for (const Tensor* x : {&mapped.q, &mapped.k, &mapped.v, &beta}) {
      if (!one_token::takes(*x, batch, state)) return false;
    }
    return delta_takes_one_token(heads, g);
  };
  return choose("delta rule's layer", mapped.q,
                on_cpu(
                    "one token", [&] { return convolves && takes_all(); },
                    [&] { return delta_one_token(heads, maps, mapped, beta, g, *state); }),
                otherwise("convolution, delta_scan", [&] {
                  if (convolves)
                    return read_by_scan(heads, maps.convolved(mapped, batch, state), beta, g, batch, state);
                  const Qkv activated{at::silu(mapped.q), at::silu(mapped.k), at::silu(mapped.v)};
                  return read_by_scan(heads, activated, beta, g, batch, state);
                }));
}

}  // namespace cortado
