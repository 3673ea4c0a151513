#include "cortado/nn/rotary/on_gpu.h"

#include <torch/csrc/autograd/custom_function.h>

#include "cortado/nn/rotary/rotary_gpu.h"
#include "cortado/primitives/cuda/runtime.h"
#include "cortado/primitives/cuda/tensors.h"

namespace cortado::window {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// The adjoint of a rotation is the inverse rotation, times the same attention factor, so x is not saved.
class TurnFunction : public torch::autograd::Function<TurnFunction> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& cos, const Tensor& sin) {
    context->save_for_backward({cos, sin});
    return turn_on_gpu(x, cos, sin, 1, cuda::machine_of(x));
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    return {turn_on_gpu(gradients[0], saved[0], saved[1], -1, cuda::machine_of(gradients[0])), Variable(), Variable()};
  }
};

bool reads(const Tensor& x) {
  return cuda::is_there(x) && x.scalar_type() == at::kBFloat16 && x.dim() == 4 && x.size(3) % 8 == 0 &&
         x.size(3) <= 128 && x.size(0) <= cuda::kMostRows;
}

}  // namespace

bool gpu_turns(const Tensor& x, const Tensor& cos) {
  return reads(x) && cos.scalar_type() == at::kFloat && cos.size(3) % 8 == 0 && cos.size(2) == 1;
}

Tensor turn_on_gpu(const Tensor& x, const Tensor& cos, const Tensor& sin, float direction, cuda::Machine& machine) {
  const Tensor from = cuda::in_pieces(x), c = cos.contiguous(), s = sin.contiguous(),
               y = at::empty(x.sizes(), x.options());
  GpuRotary in{};
  in.x = cuda::timed(from);
  in.y = cuda::timed(y);
  in.cos = c.const_data_ptr<float>();
  in.sin = s.const_data_ptr<float>();
  in.table = c.size(0) == 1 ? 0 : c.stride(0);
  in.tokens = int(x.size(1));
  in.heads = int(x.size(2));
  in.width = int(x.size(3));
  in.half = int(c.size(3));
  in.direction = direction;
  machine.launch({"rotary/kernel", "", "rotary", cuda::kRowThreads},
                 cuda::row_blocks(x.size(0), x.size(1) * x.size(2), x.size(3)), &in);
  return y;
}

Tensor turn(const Tensor& x, const Tensor& cos, const Tensor& sin) { return TurnFunction::apply(x, cos, sin); }

bool gpu_turns_token(const Tensor& q, const Tensor& k, int64_t half) {
  return reads(q) && reads(k) && q.size(1) == 1 && q.size(3) == k.size(3) && half % 8 == 0 && 2 * half <= q.size(3) &&
         !(at::GradMode::is_enabled() && (q.requires_grad() || k.requires_grad()));
}

Turned turn_token_on_gpu(const Tensor& q, const Tensor& k, const TokenAngles& angles, cuda::Machine& machine) {
  const c10::DeviceGuard guard(q.device());
  const Tensor queries = cuda::in_pieces(q), keys = cuda::in_pieces(k), at = angles.positions.contiguous(),
               by = angles.frequencies.contiguous();
  const Turned made{at::empty(q.sizes(), q.options()), at::empty(k.sizes(), k.options())};
  const GpuTokenRotary in{cuda::timed(queries),
                          cuda::timed(keys),
                          cuda::timed(made.q),
                          cuda::timed(made.k),
                          by.const_data_ptr<double>(),
                          cuda::long_numbers(at),
                          int(q.size(3)),
                          int(by.size(0)),
                          static_cast<float>(angles.factor)};
  machine.launch({"rotary/kernel", "", "rotary_token", cuda::kRowThreads},
                 cuda::row_blocks(q.size(0), q.size(2) + k.size(2), q.size(3)), &in);
  return made;
}

Turned turn_token(const Tensor& q, const Tensor& k, const TokenAngles& angles) {
  return turn_token_on_gpu(q, k, angles, cuda::machine_of(q));
}

}  // namespace cortado::window
