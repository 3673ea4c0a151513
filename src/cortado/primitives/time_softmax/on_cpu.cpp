#include "cortado/primitives/time_softmax/on_cpu.h"

#include "cortado/primitives/kernels/tensors.h"
#include "cortado/primitives/time_softmax/kernel.h"

namespace cortado::softmax {

namespace {

// [B,T,H,L] as channels H·L side by side: a copy only where they are not.
Tensor flat(const Tensor& x) { return kernels::dense_rows(x.flatten(2)); }

const float* state(const Tensor& x) { return x.defined() ? x.data_ptr<float>() : nullptr; }

}  // namespace

bool kernel_takes(const Tensor& theta, const Tensor& normalizer, const Tensor& maximum) {
  for (const Tensor& x : {theta, normalizer, maximum}) {
    if (x.defined() && x.scalar_type() != at::kFloat) return false;
  }
  return kernels::usable({theta, normalizer, maximum});
}

TimeSoftmax softmax_by_kernel(const Tensor& theta, const Tensor& normalizer, const Tensor& maximum,
                              const std::vector<int64_t>* bounds) {
  const Tensor logits = flat(theta);
  const Tensor alpha = normalizer.defined() ? normalizer.contiguous() : normalizer;
  const Tensor peak = maximum.defined() ? maximum.contiguous() : maximum;
  SoftmaxKernel call{.rows = bounds ? static_cast<int64_t>(bounds->size()) - 1 : theta.size(0),
                     .tokens = theta.size(1),
                     .channels = logits.size(2)};
  call.bounds = bounds ? bounds->data() : nullptr;
  call.theta = kernels::channels(logits);
  call.initial_maximum = state(peak);
  call.initial_normalizer = state(alpha);
  const auto room = [&] { return kernels::room(logits.sizes(), logits.options()); };
  const Tensor keys = room(), gate = room(), seen = room(), sums = room();
  const std::vector<int64_t> rows{call.rows, theta.size(2), theta.size(3)};
  const Tensor last_alpha = kernels::room(rows, logits.options()), last_m = kernels::room(rows, logits.options());
  call.keys = kernels::channels(keys);
  call.gate = kernels::channels(gate);
  call.maximum = kernels::channels(seen);
  call.normalizer = kernels::channels(sums);
  call.last_maximum = last_m.data_ptr<float>();
  call.last_normalizer = last_alpha.data_ptr<float>();
  run_softmax(call, kernels::parallel(kernels::kAnExponential * logits.numel()));
  const auto wide = [&](const Tensor& x) { return x.view(theta.sizes()); };
  return {wide(keys), wide(gate), wide(seen), wide(sums), last_alpha, last_m};
}

}  // namespace cortado::softmax
