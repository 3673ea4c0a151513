#include "cortado/primitives/gated_scan/step_on_gpu.h"

#include "cortado/primitives/cuda/runtime.h"
#include "cortado/primitives/cuda/tensors.h"
#include "cortado/primitives/gated_scan/step_gpu.h"

namespace cortado::gated {

bool gpu_takes_step(const ScanCall& call) {
  return call.type == at::kFloat && call.k.size(0) <= cuda::kMostRows && call.state_heads <= cuda::kMostRows &&
         (call.read_keys ? call.k.size(3) <= kGpuStepKeys : call.v.size(3) <= kGpuStepValues) &&
         cuda::are_there({call.q, call.k, call.v, call.g, call.beta, call.bonus}, cuda::kNarrow);
}

FormOutputs step_on_gpu(const ScanCall& call, cuda::Machine& machine) {
  const c10::DeviceGuard guard(call.k.device());
  const int64_t batch = call.k.size(0), keys = call.k.size(3), values = call.v.size(3), heads = call.heads;
  using cuda::readable, cuda::token;
  const Tensor q = readable(call.q), k = readable(call.k), v = readable(call.v), g = readable(call.g);
  const Tensor beta = readable(call.beta),
               bonus = readable(call.bonus.defined() ? call.bonus.unsqueeze(0).unsqueeze(0) : call.bonus);
  const Tensor initial = call.initial_state ? call.initial_state->to(at::kFloat).contiguous() : Tensor();
  const auto floats = call.v.options().dtype(at::kFloat);
  const bool short_o = call.v.scalar_type() == at::kBFloat16;
  const Tensor o = at::empty({batch, 1, heads, call.read_keys ? values : keys}, short_o ? call.v.options() : floats);
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
                   call.decay == DecayKind::kFactors,
                   short_o,
                   float(call.factor)};
  const int64_t cut = call.read_keys ? values : keys;
  const cuda::Blocks blocks{unsigned((cut + kGpuStepPiece - 1) / kGpuStepPiece), unsigned(call.state_heads),
                            unsigned(batch)};
  machine.launch({"gated_scan/kernel_step", "", "scan_step", cuda::kGpuStepThreads, kGpuStepBytes}, blocks, &in);
  FormOutputs out;
  (call.read_keys ? out.w : out.y) = o.to(call.v.scalar_type());
  out.final_state = last;
  return out;
}

}  // namespace cortado::gated
