#include "cortado/nn/gated_silu/on_gpu.h"

#include <torch/csrc/autograd/custom_function.h>

#include "cortado/base/error.h"
#include "cortado/nn/gated_silu/gated_silu_gpu.h"
#include "cortado/primitives/cuda/runtime.h"
#include "cortado/primitives/cuda/tensors.h"

namespace cortado::fused {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kPerBlock = int64_t{kGpuSiluThreads} * 8;

void launch(cuda::Machine& machine, const char* name, const GpuGatedSilu& in, const Tensor& like) {
  machine.launch({"gated_silu/kernel", cuda::variant_of(like.scalar_type()), name, kGpuSiluThreads},
                 {unsigned((in.count + kPerBlock - 1) / kPerBlock)}, &in);
}

class GpuGatedSiluFunction : public torch::autograd::Function<GpuGatedSiluFunction> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& gate, const Tensor& up) {
    context->save_for_backward({gate, up});
    return gated_silu_on_gpu(gate, up, cuda::machine_of(gate));
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    fail_input_if(at::GradMode::is_enabled(), "[gated_silu] can be differentiated once only");
    const auto saved = context->get_saved_variables();
    const auto found = gated_silu_gradient_on_gpu(saved[0], saved[1], gradients[0], cuda::machine_of(saved[0]));
    return {found.gate, found.up};
  }
};

}  // namespace

bool gpu_takes(const Tensor& gate, const Tensor& up) {
  const auto type = gate.scalar_type();
  return cuda::is_there(gate) && cuda::is_there(up) && cuda::is_short(type) && up.scalar_type() == type &&
         gate.sizes() == up.sizes() && gate.numel() % 8 == 0 && gate.numel() / kPerBlock < (int64_t{1} << 31) - 1;
}

Tensor gated_silu_on_gpu(const Tensor& gate, const Tensor& up, cuda::Machine& machine) {
  const c10::DeviceGuard guard(gate.device());
  const Tensor opened = cuda::dense(gate), risen = cuda::dense(up), y = at::empty(gate.sizes(), gate.options());
  GpuGatedSilu in{};
  in.gate = opened.const_data_ptr();
  in.up = risen.const_data_ptr();
  in.y = y.mutable_data_ptr();
  in.count = gate.numel();
  launch(machine, "gated_silu", in, gate);
  return y;
}

GatedSiluGradients gated_silu_gradient_on_gpu(const Tensor& gate, const Tensor& up, const Tensor& grad_y,
                                              cuda::Machine& machine) {
  const c10::DeviceGuard guard(gate.device());
  const Tensor opened = cuda::dense(gate), risen = cuda::dense(up), dy = cuda::dense(grad_y.to(gate.scalar_type()));
  const GatedSiluGradients made{at::empty(gate.sizes(), gate.options()), at::empty(gate.sizes(), gate.options())};
  GpuGatedSilu in{};
  in.gate = opened.const_data_ptr();
  in.up = risen.const_data_ptr();
  in.grad_y = dy.const_data_ptr();
  in.grad_gate = made.gate.mutable_data_ptr();
  in.grad_up = made.up.mutable_data_ptr();
  in.count = gate.numel();
  launch(machine, "gated_silu_gradient", in, gate);
  return made;
}

Tensor gpu_gated_silu(const Tensor& gate, const Tensor& up) { return GpuGatedSiluFunction::apply(gate, up); }

}  // namespace cortado::fused
