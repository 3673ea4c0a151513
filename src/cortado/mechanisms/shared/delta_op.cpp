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

// x [B,T,steps·size] as one token per step: [B,T·steps,size].
Tensor spread(const Tensor& x, int64_t steps) { return steps == 1 ? x : x.unflatten(2, {steps, -1}).flatten(1, 2); }

// Places x [B,T,...] at one step of each token and zeros at the others: [B,T·steps,...].
Tensor at_step(const Tensor& x, int64_t step, int64_t steps) {
  std::vector<int64_t> pad(2 * x.dim(), 0);  // from the last dimension to the new one, before and after
  pad[2 * (x.dim() - 2)] = step;
  pad[2 * (x.dim() - 2) + 1] = steps - 1 - step;
  return at::constant_pad_nd(x.unsqueeze(2), pad).flatten(1, 2);
}

Tensor read_by_scan(const DeltaHeads& heads, const Qkv& in, const Tensor& beta, const OptionalTensor& g,
                    const Batch& batch, SequenceState* state) {
  const Tensor rate = delta_rate(heads, beta);
  OptionalTensor start = start_of(state, "scan_state");
  if (batch.parts) start = delta_state_before_part(in.k, in.v, rate, g, *start, *batch.parts);
  auto [o, last] = delta_scan(in.q, in.k, in.v, rate, g, {}, start, batch.cu_seqlens);
  keep(state, {{"scan_state", last}});
  return o;
}

// The steps of a token are tokens of the scan: the state decays before the first one and is read after the last one.
Tensor read_by_steps(const DeltaHeads& heads, const Qkv& in, const Tensor& beta, const OptionalTensor& g,
                     const Batch& batch, SequenceState* state) {
  const int64_t steps = heads.steps;
  if (steps == 1) return read_by_scan(heads, in, beta, g, batch, state);
  Batch spread_batch = batch;
  if (batch.cu_seqlens) spread_batch.cu_seqlens = *batch.cu_seqlens * steps;
  const Qkv all{at_step(in.q, steps - 1, steps), in.k, in.v};
  const OptionalTensor decay = g ? OptionalTensor(at_step(*g, 0, steps)) : std::nullopt;
  return read_by_scan(heads, all, spread(beta, steps), decay, spread_batch, state)
      .unflatten(1, {-1, steps})
      .select(2, steps - 1);
}

}  // namespace

Tensor delta_rate(const DeltaHeads& heads, const Tensor& mapped) {
  const Tensor rate = widen(mapped).sigmoid();
  return heads.reflect ? rate * 2 : rate;
}

Qkv delta_operands(const DeltaHeads& heads, const ConvolvedQkv& maps, const Qkv& mapped, const Batch& batch,
                   SequenceState* state) {
  const Qkv in = maps.q.taps() > 0 ? maps.convolved(mapped, batch, state)
                                   : Qkv{at::silu(mapped.q), at::silu(mapped.k), at::silu(mapped.v)};
  return {for_products(l2_normalized(split_heads(in.q, heads.key_heads))),
          for_products(l2_normalized(split_heads(spread(in.k, heads.steps), heads.key_heads))),
          for_products(split_heads(spread(in.v, heads.steps), heads.heads))};
}

Tensor delta_read(const DeltaHeads& heads, const ConvolvedQkv& maps, const Qkv& mapped, const Tensor& beta,
                  const OptionalTensor& g, const Batch& batch, SequenceState* state) {
  const auto takes_all = [&] {
    if (maps.q.taps() == 0 || heads.steps > 1) return false;
    for (const Tensor* x : {&mapped.q, &mapped.k, &mapped.v, &beta}) {
      if (!one_token::takes(*x, batch, state)) return false;
    }
    return delta_takes_one_token(heads, g);
  };
  return choose("delta rule's layer", mapped.q,
                on_cpu("one token", takes_all, [&] { return delta_one_token(heads, maps, mapped, beta, g, *state); }),
                otherwise("convolution, delta_scan", [&] {
                  const Qkv in = delta_operands(heads, maps, mapped, batch, state);
                  return read_by_steps(heads, in, beta, g, batch, state);
                }));
}

}  // namespace cortado
