#include "cortado/nn/gated_silu/op.h"

#include "cortado/nn/fused/ops.h"
#include "cortado/nn/gated_silu/on_gpu.h"
#include "cortado/nn/linear/op.h"
#include "cortado/nn/token/on_gpu.h"
#include "cortado/primitives/choice.h"

namespace cortado {

Tensor gated_silu(const Tensor& gate, const Tensor& up) {
  return choose(
      "gated_silu", gate,
      on_cpu(
          "kernel", [&] { return fused::takes({gate, up}); }, [&] { return fused::gated_silu(gate, up); }),
      on_gpu(
          "kernel", [&] { return fused::gpu_takes(gate, up); }, [&] { return fused::gpu_gated_silu(gate, up); }),
      otherwise("ATen", [&] { return at::silu(gate) * up; }));
}

Tensor gated_silu(const Tensor& x, const Linear& gate, const Linear& up) {
  const auto map = [](const Linear& linear) -> token::Map { return {linear.weight, linear.bias}; };
  return choose("gated_silu of maps", x,
                on_gpu(
                    "kernel of few rows",
                    [&] { return gate.plain() && up.plain() && token::gpu_multiplies(x, {map(gate), map(up)}); },
                    [&] { return token::gated_silu(x, map(gate), map(up)); }),
                otherwise("linear, gated_silu", [&] {
                  const auto both = forward_all(x, {&gate, &up});
                  return gated_silu(both[0], both[1]);
                }));
}

}  // namespace cortado
