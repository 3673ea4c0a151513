#include "cortado/primitives/elementwise_scan/on_cpu.h"

#include "cortado/primitives/elementwise_scan/kernel.h"
#include "cortado/primitives/kernels/tensors.h"

namespace cortado::elementwise {

namespace {

// Float32 with the channels side by side: a copy only where that is not so.
Tensor plain(const Tensor& x) { return kernels::dense_rows(x.to(at::kFloat).resolve_conj()); }

Tensor room(const Tensor& like) { return kernels::room(like.sizes(), like.options().dtype(at::kFloat)); }

const float* state(const Tensor& x) { return x.defined() ? x.data_ptr<float>() : nullptr; }

// Points into its arguments, which must outlive it.
ScanKernel kernel_call(const Tensor& log_a, const Tensor& initial, const std::vector<int64_t>* bounds, bool reverse) {
  ScanKernel call{};
  call.rows = bounds ? static_cast<int64_t>(bounds->size()) - 1 : log_a.size(0);
  call.tokens = log_a.size(1);
  call.channels = log_a.size(2);
  call.bounds = bounds ? bounds->data() : nullptr;
  call.reverse = reverse;
  call.log_a = kernels::channels(log_a);
  call.initial = state(initial);
  return call;
}

Tensor plain_state(const Tensor& x) { return x.defined() ? x.to(at::kFloat).contiguous() : x; }

}  // namespace

bool kernel_takes(at::ScalarType type, const Tensor& log_a, const Tensor& b) {
  return type == at::kFloat && kernels::usable({log_a, b});
}

std::pair<Tensor, Tensor> forward_by_kernel(const Tensor& log_a, const Tensor& b, const Tensor& initial,
                                            const std::vector<int64_t>* bounds, bool reverse) {
  const Tensor logs = plain(log_a), adds = plain(b), start = plain_state(initial), h = room(b);
  ScanKernel call = kernel_call(logs, start, bounds, reverse);
  const Tensor last = kernels::room({call.rows, call.channels}, h.options());
  call.b = kernels::channels(adds);
  call.h = kernels::channels(h);
  call.final_state = last.data_ptr<float>();
  run_forward(call, kernels::parallel(kernels::kAnExponential * adds.numel()));
  return {h, last};
}

Gradients backward_by_kernel(const Tensor& grad_h, const Tensor& grad_final, const Tensor& log_a, const Tensor& h,
                             const Tensor& initial, const std::vector<int64_t>* bounds, bool reverse) {
  const Tensor logs = plain(log_a), grads = plain(grad_h), outputs = plain(h);
  const Tensor start = plain_state(initial), last = plain_state(grad_final);
  ScanKernel call = kernel_call(logs, start, bounds, reverse);
  const Gradients out{room(log_a), room(log_a), kernels::room({call.rows, call.channels}, logs.options())};
  call.h = kernels::channels(outputs);
  call.grad_h = kernels::channels(grads);
  call.grad_final = state(last);
  call.grad_log_a = kernels::channels(out.log_a);
  call.grad_b = kernels::channels(out.b);
  call.grad_initial = out.initial.data_ptr<float>();
  run_backward(call, kernels::parallel());
  return out;
}

}  // namespace cortado::elementwise
