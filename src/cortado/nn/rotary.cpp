#include "cortado/nn/rotary.h"

#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <map>
#include <tuple>

#include "cortado/base/error.h"
#include "cortado/nn/fused/ops.h"
#include "cortado/nn/wide.h"

namespace cortado {

namespace {

Tensor turn(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  const Tensor wide = x.to(cos.scalar_type());
  const auto halves = wide.chunk(2, -1);
  const Tensor first = (halves[0] * cos).addcmul_(halves[1], sin, -1);
  const Tensor second = (halves[1] * cos).addcmul_(halves[0], sin);
  return at::cat({first, second}, -1).to(x.scalar_type());
}

// A rotation's adjoint is the rotation back: no intermediate needs to be kept.
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

}  // namespace

namespace {

// theta^(-2i/head_dim), float64 [head_dim/2]. A model asks for the same ones once a layer and token: kept.
Tensor frequencies(int64_t head_dim, double theta, at::Device device) {
  thread_local std::map<std::tuple<int64_t, double, std::string>, Tensor> known;
  Tensor& kept = known[{head_dim, theta, device.str()}];
  if (!kept.defined()) {
    const auto options = at::TensorOptions().dtype(at::kDouble).device(device);
    kept = at::arange(0, head_dim, 2, options).mul_(-std::log(theta) / static_cast<double>(head_dim)).exp_();
  }
  return kept;
}

}  // namespace

RotaryTable rotary_table(const Tensor& positions, int64_t head_dim, double theta, at::ScalarType type) {
  fail_input_if(head_dim < 2 || head_dim % 2 != 0, "[rotary] the head size must be even, got ", head_dim);
  // A dense batch from zero has the same positions in every row: one row of the table serves all.
  const bool same_rows = positions.size(0) > 1 && positions.stride(0) == 0;
  const Tensor rows = same_rows ? positions.narrow(0, 0, 1) : positions;
  const Tensor angles = rows.to(at::kDouble).unsqueeze(-1).unsqueeze(-1) * frequencies(head_dim, theta, rows.device());
  return {angles.cos().to(type), angles.sin().to(type)};
}

Tensor rotate(const Tensor& x, const RotaryTable& table) {
  const int64_t turned = 2 * table.cos.size(3);
  fail_input_if(x.dim() != 4 || x.size(3) < turned, "[rotary] expected [B, T, H, ", turned, " or more], got ",
                x.sizes());
  if (fused::takes({x, table.cos})) return fused::rotary(x, table.cos, table.sin);
  if (x.size(3) > turned) {
    return at::cat({rotate(x.narrow(3, 0, turned), table), x.narrow(3, turned, x.size(3) - turned)}, 3);
  }
  if (at::GradMode::is_enabled() && x.requires_grad()) return Rotate::apply(x, table.cos, table.sin);
  return turn(x, table.cos, table.sin);
}

Tensor apply_rotary(const Tensor& x, const Tensor& positions, double theta) {
  return rotate(x, rotary_table(positions, x.size(-1), theta, wide_type(x)));
}

void rotate_queries_and_keys(Tensor& q, Tensor& k, const Tensor& positions, std::optional<double> theta,
                             std::optional<int64_t> channels) {
  if (!theta) return;
  const RotaryTable table = rotary_table(positions, channels.value_or(q.size(-1)), *theta, wide_type(q));
  q = rotate(q, table);
  k = rotate(k, table);
}

}  // namespace cortado
