#include "cortado/mechanisms/mamba2/op.h"

#include "cortado/mechanisms/mamba2/one_token.h"
#include "cortado/mechanisms/shared/convolved.h"
#include "cortado/mechanisms/shared/heads.h"
#include "cortado/mechanisms/shared/one_token.h"
#include "cortado/mechanisms/shared/part_scan.h"
#include "cortado/primitives/choice.h"

namespace cortado {

Mamba2Operands mamba2_operands(const Mamba2Shape& sizes, const Mamba2Dynamics& dynamics, const Tensor& convolved,
                               const Tensor& step) {
  const int64_t shared = sizes.groups * sizes.state;
  const auto parts = convolved.split_with_sizes({sizes.inner, shared, shared}, -1);
  const Tensor x = split_heads(parts[0], sizes.heads);
  Tensor delta = at::softplus(widen(step) + dynamics.step_bias);
  if (sizes.step_min > 0) delta = delta.clamp_min(sizes.step_min);
  return {x, split_heads(parts[2], sizes.groups), split_heads(parts[1], sizes.groups), widen(x) * delta.unsqueeze(-1),
          -dynamics.a_log.exp() * delta};
}

Tensor with_skip(const Tensor& o, const Tensor& x, const Mamba2Dynamics& dynamics) {
  return merge_heads(at::addcmul(o, widen(x), dynamics.skip.unsqueeze(-1)));
}

Tensor mamba2_scan(const Mamba2Shape& sizes, const Mamba2Dynamics& dynamics,
                   const std::shared_ptr<ShortConvolution>& convolution, const Tensor& projected, const Batch& batch,
                   SequenceState* state) {
  return choose(
      "mamba2", projected,
      on_cpu(
          "one token",
          [&] { return convolution && mamba2_takes_one_token(sizes) && one_token::takes(projected, batch, state); },
          [&] { return mamba2_one_token(sizes, dynamics, *convolution, projected, *state); }),
      otherwise("convolution, gated_scan", [&] {
        const auto parts = projected.split_with_sizes({sizes.inner, sizes.mixed(), sizes.heads}, -1);
        const Mamba2Operands now =
            mamba2_operands(sizes, dynamics, convolve(convolution, parts[1], batch, state), parts[2]);
        return with_skip(scan_part({now.q, now.k, now.v, now.g, 1.0}, batch, state), now.x, dynamics);
      }));
}

}  // namespace cortado
