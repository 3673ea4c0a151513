#include "cortado/primitives/time_softmax/on_gpu.h"

#include "cortado/primitives/elementwise_scan/on_gpu.h"
#include "cortado/primitives/time_softmax/kernel_gpu.h"

namespace cortado::softmax {

TimeSoftmax on_gpu(const Tensor& theta, const Tensor& normalizer, const Tensor& maximum, const Bounds& bounds,
                   cuda::Machine& machine, int64_t parts) {
  const c10::DeviceGuard guard(theta.device());
  const Tensor flat = theta.flatten(2);
  const Tensor logits = flat.stride(2) == 1 || flat.size(2) == 1 ? flat : flat.contiguous();
  const auto given = [](const Tensor& x) { return x.defined() ? x.contiguous() : x; };
  const Tensor start = given(normalizer), peak = given(maximum);
  const timewise::GpuWalk walk(logits, bounds, false, machine, parts);
  const auto room = [&](at::IntArrayRef sizes) { return at::empty(sizes, theta.options()); };
  const TimeSoftmax out{room(theta.sizes()),
                        room(theta.sizes()),
                        room(theta.sizes()),
                        room(theta.sizes()),
                        room({walk.times.rows, theta.size(2), theta.size(3)}),
                        room({walk.times.rows, theta.size(2), theta.size(3)})};
  const auto channels = [](const Tensor& x) { return timewise::gpu_channels(x.flatten(2)); };
  const GpuSoftmax in{walk.times,
                      timewise::gpu_channels(logits),
                      channels(out.keys),
                      channels(out.gate),
                      channels(out.maximum),
                      channels(out.normalizer),
                      cuda::floats(peak),
                      cuda::floats(start),
                      out.last_maximum.mutable_data_ptr<float>(),
                      out.last_normalizer.mutable_data_ptr<float>()};
  walk.launch(machine, "time_softmax/kernel", "time_softmax", &in);
  return out;
}

}  // namespace cortado::softmax
