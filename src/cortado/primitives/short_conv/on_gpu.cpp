#include "cortado/primitives/short_conv/on_gpu.h"

#include "cortado/primitives/cuda/runtime.h"
#include "cortado/primitives/cuda/tensors.h"
#include "cortado/primitives/short_conv/kernel_gpu.h"

namespace cortado::convolution {

namespace {

Tensor in_rows(const Tensor& x) {
  const bool even = x.stride(0) % 2 == 0 && x.stride(1) % 2 == 0 && x.storage_offset() % 2 == 0;
  return x.stride(2) == 1 && even ? x : x.contiguous();
}
GpuRows rows_of(const Tensor& x) { return {x.data_ptr(), x.stride(0), x.stride(1)}; }
Tensor plain(const Tensor& x) { return x.defined() ? x.to(at::kFloat).contiguous() : x; }
// A weight or bias in a type that the kernels read together with x.
Tensor readable(const Tensor& weight, const Tensor& x) {
  return weight.defined() && weight.scalar_type() != x.scalar_type() ? weight.to(at::kFloat) : weight;
}
GpuTaps taps_of(const Tensor& x) {
  if (!x.defined()) return {};
  return {x.const_data_ptr(), x.stride(0), x.dim() == 2 ? x.stride(1) : 0, x.scalar_type() != at::kFloat};
}
struct Call {
  Tensor x, weight, bias, initial;
  cuda::GpuBounds bounds;
  GpuConv in{};
  std::string variant;

  Call(const GpuInputs& given, const Bounds& rows)
      : x(in_rows(given.x)),
        weight(readable(given.weight, x)),
        bias(readable(given.bias, x)),
        initial(plain(given.initial)),
        bounds(rows.get(), x.size(1), x.device()) {
    in.bounds = bounds.get();
    in.x = rows_of(x);
    in.weight = taps_of(weight);
    in.bias = taps_of(bias);
    in.initial = cuda::floats(initial);
    in.rows = int(rows.rows(x.size(0)));
    in.tokens = int(x.size(1));
    in.channels = int(x.size(2));
    in.parts = int(std::max<int64_t>(1, (bounds.longest + kGpuConvTokens - 1) / kGpuConvTokens));
    in.silu = given.silu;
    variant = "TAPS=" + std::to_string(weight.size(1));
    if (cuda::is_short(x.scalar_type())) variant += " SHORT";
    variant = cuda::variant_of(x.scalar_type(), variant);
  }

  Tensor states() const { return at::empty({in.rows, weight.size(1) - 1, x.size(2)}, floats()); }
  at::TensorOptions floats() const { return x.options().dtype(at::kFloat); }

  void launch(cuda::Machine& machine, const char* kernel) const {
    const unsigned groups = unsigned((in.channels / 2 + kGpuConvThreads - 1) / kGpuConvThreads);
    machine.launch({"short_conv/kernel", variant, kernel, kGpuConvThreads},
                   {groups, unsigned(in.parts), unsigned(in.rows)}, &in);
  }
};

}  // namespace

bool gpu_takes(const GpuInputs& in, const Bounds& bounds) {
  const auto type = in.x.scalar_type();
  const int64_t rows = bounds.rows(in.x.size(0));
  return cuda::is_there(in.x) && (type == at::kFloat || cuda::is_short(type)) &&
         in.weight.scalar_type() != at::kDouble && (!in.initial.defined() || in.initial.scalar_type() != at::kDouble) &&
         in.x.size(2) % 2 == 0 && in.weight.size(1) <= kGpuMostTaps && rows > 0 && rows <= cuda::kMostRows &&
         in.x.size(1) / kGpuConvTokens < cuda::kMostRows;
}

TensorTuple<2> forward_on_gpu(const GpuInputs& given, const Bounds& bounds, cuda::Machine& machine) {
  const c10::DeviceGuard guard(given.x.device());
  Call call(given, bounds);
  const Tensor y = at::empty(given.x.sizes(), given.x.options()), last = call.states();
  call.in.y = rows_of(y);
  call.in.final_state = last.mutable_data_ptr<float>();
  call.launch(machine, "short_conv_forward");
  return {y, last};
}

TensorTuple<4> backward_on_gpu(const GpuInputs& given, const Bounds& bounds, const Tensor& grad_y,
                               const Tensor& grad_final, cuda::Machine& machine) {
  const c10::DeviceGuard guard(given.x.device());
  Call call(given, bounds);
  const int64_t taps = call.weight.size(1);
  const Tensor grads = in_rows(grad_y.to(call.x.scalar_type())), last = plain(grad_final);
  const Tensor grad_x = at::empty(given.x.sizes(), given.x.options()), first = call.states();
  const Tensor sums = at::empty({int64_t{call.in.rows} * call.in.parts, taps + 1, call.in.channels}, call.floats());
  if (call.in.bounds) sums.zero_();  // for parts that short rows do not have
  call.in.grad_y = rows_of(grads);
  call.in.grad_x = rows_of(grad_x);
  call.in.grad_final = cuda::floats(last);
  call.in.grad_initial = first.mutable_data_ptr<float>();
  call.in.sums = sums.mutable_data_ptr<float>();
  call.launch(machine, "short_conv_backward");
  const Tensor total = sums.sum(0);
  return {grad_x, total.narrow(0, 0, taps).t(), total.select(0, taps), first};
}

}  // namespace cortado::convolution
