#include "cortado/primitives/latte_scan/step_on_gpu.h"

#include <algorithm>

#include "cortado/primitives/cuda/runtime.h"
#include "cortado/primitives/cuda/tensors.h"
#include "cortado/primitives/latte_scan/step_gpu.h"

namespace cortado::latent {

bool gpu_takes_step(const GpuLatteInputs& in) {
  return !in.bounds && in.v.size(1) == 1 && in.theta.size(3) <= kGpuStepLatents && in.v.size(0) <= cuda::kMostRows &&
         std::max(in.theta.size(2), in.v.size(2)) <= cuda::kMostRows &&
         cuda::are_there({in.query, in.theta, in.v, in.state, in.normalizer, in.maximum}, cuda::kNarrow);
}

LatteResult step_on_gpu(const GpuLatteInputs& in, cuda::Machine& machine) { return mixed_step_on_gpu(in, {}, machine); }

LatteResult mixed_step_on_gpu(const GpuLatteInputs& given, const Tensor& near_given, cuda::Machine& machine) {
  const c10::DeviceGuard guard(given.v.device());
  const GpuLatteInputs in = with_plain_states(given);
  const int64_t batch = in.v.size(0), latents = in.theta.size(3), values = in.v.size(3);
  const int64_t state_heads = std::max(in.theta.size(2), in.v.size(2)), heads = std::max(in.query.size(2), state_heads);
  const Tensor query = cuda::readable(in.query), theta = cuda::readable(in.theta), v = cuda::readable(in.v),
               near = cuda::readable(near_given);
  const auto floats = in.v.options().dtype(at::kFloat);
  const bool short_o = in.v.scalar_type() == at::kBFloat16;
  const Tensor o = at::empty({batch, 1, heads, values}, short_o ? in.v.options() : floats);
  const Tensor last = at::empty({batch, state_heads, latents, values}, floats),
               last_normalizer = at::empty({batch, state_heads, latents}, floats),
               last_maximum = at::empty_like(last_normalizer);
  const GpuLatteStep step{cuda::token(query),
                          cuda::token(theta),
                          cuda::token(v),
                          near.defined() ? cuda::token(near) : cuda::GpuToken{},
                          cuda::floats(in.state),
                          cuda::floats(in.normalizer),
                          cuda::floats(in.maximum),
                          last.mutable_data_ptr<float>(),
                          last_normalizer.mutable_data_ptr<float>(),
                          last_maximum.mutable_data_ptr<float>(),
                          o.mutable_data_ptr(),
                          int(heads),
                          int(state_heads),
                          int(latents),
                          int(values),
                          in.softmax,
                          short_o};
  const cuda::Blocks blocks{unsigned((values + kGpuStepValues - 1) / kGpuStepValues), unsigned(state_heads),
                            unsigned(batch)};
  machine.launch({"latte_scan/kernel_step", "", "latte_step", cuda::kGpuStepThreads, kGpuStepBytes}, blocks, &step);
  return {o.to(in.v.scalar_type()), last, last_normalizer, last_maximum};
}

}  // namespace cortado::latent
