#include "cortado/primitives/gated_scan/step_on_gpu.h"

#include "cortado/primitives/cuda/runtime.h"
#include "cortado/primitives/cuda/tensors.h"
#include "cortado/primitives/gated_scan/step_gpu.h"

namespace cortado::gated {

bool gpu_takes_step(const ScanCall& call) {
  const FormInputs& in = call.form;
  return call.options.type == at::kFloat && in.x.size(0) <= cuda::kMostRows && call.state_heads <= cuda::kMostRows &&
         (call.read_keys ? in.x.size(3) <= kGpuStepKeys : in.v.size(3) <= kGpuStepValues) &&
         cuda::are_there({in.x, in.v, in.g, in.beta, in.bonus, call.query}, cuda::kNarrow);
}

TensorTuple<2> step_on_gpu(const ScanCall& call, cuda::Machine& machine) {
  const c10::DeviceGuard guard(call.form.x.device());
  const FormInputs& form = call.form;
  const int64_t batch = form.x.size(0), keys = form.x.size(3), values = form.v.size(3), heads = call.options.heads;
  using cuda::readable, cuda::token;
  const Tensor q = readable(call.query), k = readable(form.x), v = readable(form.v), g = readable(form.g);
  const Tensor beta = readable(form.beta),
               bonus = readable(form.bonus.defined() ? form.bonus.unsqueeze(0).unsqueeze(0) : form.bonus);
  const Tensor initial = call.initial_state ? call.initial_state->to(at::kFloat).contiguous() : Tensor();
  const auto floats = form.v.options().dtype(at::kFloat);
  const bool short_o = form.v.scalar_type() == at::kBFloat16;
  const Tensor o = at::empty({batch, 1, heads, call.read_keys ? values : keys}, short_o ? form.v.options() : floats);
  const Tensor last = at::empty({batch, call.state_heads, keys, values}, floats);
  const GpuStep in{token(q),
                   token(k),
                   token(v),
                   token(g),
                   token(beta),
                   token(bonus),
                   cuda::floats(initial),
                   last.mutable_data_ptr<float>(),
                   o.mutable_data_ptr(),
                   int(heads),
                   int(call.state_heads),
                   int(keys),
                   int(values),
                   !call.read_keys,
                   g.defined() && g.dim() == 4,
                   call.options.decay == DecayKind::kFactors,
                   short_o,
                   float(call.factor)};
  const int64_t cut = call.read_keys ? values : keys;
  const cuda::Blocks blocks{unsigned((cut + kGpuStepPiece - 1) / kGpuStepPiece), unsigned(call.state_heads),
                            unsigned(batch)};
  machine.launch({"gated_scan/kernel_step", "", "scan_step", cuda::kGpuStepThreads, kGpuStepBytes}, blocks, &in);
  return {o.to(form.v.scalar_type()), last};
}

}  // namespace cortado::gated
