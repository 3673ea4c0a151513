#include "cortado/primitives/window_attention/rotary_on_gpu.h"

#include <torch/csrc/autograd/custom_function.h>

#include "cortado/primitives/cuda/runtime.h"
#include "cortado/primitives/cuda/tensors.h"
#include "cortado/primitives/window_attention/rotary_gpu.h"

namespace cortado::window {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// A rotation's adjoint is the rotation back: nothing of x is kept.
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

}  // namespace

bool gpu_turns(const Tensor& x, const Tensor& cos) {
  return cuda::has_numbers(x) && x.is_cuda() && x.scalar_type() == at::kBFloat16 && cos.scalar_type() == at::kFloat &&
         x.dim() == 4 && x.size(3) % 8 == 0 && x.size(3) <= 128 && cos.size(3) % 8 == 0 && cos.size(2) == 1 &&
         x.numel() > 0 && cuda::usable(x.device().index());
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
  machine.launch({"window_attention/kernel_rotary", "", "rotary", cuda::kRowThreads},
                 cuda::row_blocks(x.size(0), x.size(1) * x.size(2), x.size(3)), &in);
  return y;
}

Tensor turn(const Tensor& x, const Tensor& cos, const Tensor& sin) { return TurnFunction::apply(x, cos, sin); }

}  // namespace cortado::window
