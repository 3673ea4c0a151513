// Rotary positions as an operator: rotates queries and keys by their tables.
#include <torch/csrc/autograd/custom_function.h>

#include "cortado/base/error.h"
#include "cortado/nn/fused/ops.h"
#include "cortado/nn/rotary/on_gpu.h"
#include "cortado/nn/rotary/rotary.h"
#include "cortado/nn/wide.h"
#include "cortado/primitives/choice.h"

namespace cortado {
namespace {

Tensor turn(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  const Tensor wide = x.to(cos.scalar_type());
  const auto halves = wide.chunk(2, -1);
  const Tensor first = (halves[0] * cos).addcmul_(halves[1], sin, -1);
  const Tensor second = (halves[1] * cos).addcmul_(halves[0], sin);
  return at::cat({first, second}, -1).to(x.scalar_type());
}

// The adjoint of a rotation is the inverse rotation, times the same attention factor, so nothing needs to be saved.
class Rotate : public torch::autograd::Function<Rotate> {
 public:
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x, const Tensor& cos,
                        const Tensor& sin) {
    context->save_for_backward({cos, sin});
    return turn(x, cos, sin);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    return {turn(gradients[0], saved[0], -saved[1]), Tensor(), Tensor()};
  }
};

// Channels beyond the table's are copied.
Tensor rotate_by_definition(const Tensor& x, const RotaryTable& table) {
  const int64_t turned = 2 * table.cos.size(3);
  if (x.size(3) > turned) {
    const Tensor rest = x.narrow(3, turned, x.size(3) - turned);
    return at::cat({rotate(x.narrow(3, 0, turned), table), rest}, 3);
  }
  const bool differentiate = at::GradMode::is_enabled() && x.requires_grad();
  return differentiate ? Rotate::apply(x, table.cos, table.sin) : turn(x, table.cos, table.sin);
}

}  // namespace

Tensor rotate(const Tensor& x, const RotaryTable& table) {
  const auto& [cos, sin] = table;
  fail_input_if(x.dim() != 4 || x.size(3) < 2 * cos.size(3), "[rotary] expected [B, T, H, ", 2 * cos.size(3),
                " or more], got ", x.sizes());
  const bool each = cos.size(1) == x.size(1);  // else one angle for all tokens
  return choose(
      "rotary", x,
      on_cpu(
          "kernel", [&] { return each && fused::takes({x, cos}); }, [&] { return fused::rotary(x, cos, sin); }),
      on_gpu(
          "kernel", [&] { return each && window::gpu_turns(x, cos); }, [&] { return window::turn(x, cos, sin); }),
      otherwise("ATen", [&] { return rotate_by_definition(x, table); }));
}

Tensor apply_rotary(const Tensor& x, const Tensor& positions, const Rotary& rotary) {
  return rotate(x, rotary_table(positions, x.size(-1), rotary, wide_type(x)));
}

void rotate_queries_and_keys(Tensor& q, Tensor& k, const Tensor& positions, const std::optional<Rotary>& rotary) {
  if (!rotary) return;
  const int64_t turned = rotary->channels_of(q.size(-1));
  const auto [queries, keys] = choose(
      "rotary of queries and keys", q,
      on_gpu(
          "kernel of one token", [&] { return turned % 2 == 0 && window::gpu_turns_token(q, k, turned / 2); },
          [&] {
            return window::turn_token(
                q, k,
                {positions, rotary_frequencies(turned, *rotary, positions.device()), rotary->scaling.attention_factor});
          }),
      otherwise("rotary", [&]() -> window::Turned {
        const RotaryTable table = rotary_table(positions, q.size(-1), *rotary, wide_type(q));
        return {rotate(q, table), rotate(k, table)};
      }));
  q = queries;
  k = keys;
}

}  // namespace cortado
