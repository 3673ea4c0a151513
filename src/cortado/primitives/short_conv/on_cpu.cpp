#include "cortado/primitives/short_conv/on_cpu.h"

#include "cortado/primitives/kernels/tensors.h"
#include "cortado/primitives/short_conv/kernel.h"

namespace cortado::convolution {

namespace {

Tensor floats(const Tensor& x) { return x.defined() ? x.to(at::kFloat).contiguous() : x; }

kernels::Timed timed(const Tensor& x) { return kernels::timed(x.unsqueeze(2), 1); }

const float* data(const Tensor& x) { return x.defined() ? x.data_ptr<float>() : nullptr; }

std::vector<Block> blocks_of(const Arguments& in) {
  std::vector<Block> blocks;
  const int64_t rows = in.bounds ? static_cast<int64_t>(in.bounds->size()) - 1 : in.x.size(0);
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t begin = in.bounds ? (*in.bounds)[row] : 0;
    const int64_t length = in.bounds ? (*in.bounds)[row + 1] - begin : in.x.size(1);
    int64_t first = 0;
    do {
      const int64_t count = std::min(kBlockTokens, length - first);
      blocks.push_back({row, in.bounds ? 0 : row, begin, length, first, count});
      first += count;
    } while (first < length);
  }
  return blocks;
}

// What a call points to.
struct Operands {
  Tensor x, weight, bias, initial;
  std::vector<Block> blocks;

  explicit Operands(const Arguments& in)
      : x(kernels::dense_rows(in.x)),
        weight(floats(in.weight.t())),
        bias(floats(in.bias)),
        initial(floats(in.initial)),
        blocks(blocks_of(in)) {}

  ConvKernel call(bool silu) const {
    ConvKernel call{.channels = x.size(2), .taps = weight.size(0), .silu = silu};
    call.blocks = blocks.data();
    call.count = static_cast<int64_t>(blocks.size());
    call.x = timed(x);
    call.weight = data(weight);
    call.bias = data(bias);
    call.initial = data(initial);
    call.past_caches = kernels::goes_past_caches(x.numel(), call.channels);
    return call;
  }
  Tensor states() const {
    return kernels::room({blocks.back().row + 1, weight.size(0) - 1, x.size(2)}, x.options().dtype(at::kFloat));
  }
};

}  // namespace

bool kernel_takes(at::ScalarType type, const Arguments& in) {
  const Tensor initial = in.initial.defined() && in.initial.numel() > 0 ? in.initial : Tensor();
  return type == at::kFloat && kernels::usable({in.x, in.weight, in.bias, initial});
}

std::pair<Tensor, Tensor> forward_by_kernel(const Arguments& in) {
  const Operands operands(in);
  ConvKernel call = operands.call(in.silu);
  const Tensor y = kernels::room(in.x.sizes(), in.x.options()), last = operands.states();
  call.y = timed(y);
  call.final_state = last.data_ptr<float>();
  run_forward(call, kernels::parallel(in.x.numel() * call.taps));
  return {y, last};
}

Gradients backward_by_kernel(const Arguments& in, const Tensor& grad_y, const Tensor& grad_final) {
  const Operands operands(in);
  ConvKernel call = operands.call(in.silu);
  const Tensor grads = kernels::dense_rows(grad_y.to(in.x.scalar_type())), last = floats(grad_final);
  const Tensor first = operands.states(), grad_x = kernels::room(in.x.sizes(), in.x.options());
  const Tensor weights = kernels::room({call.taps + 1, call.channels}, first.options());
  const Tensor sums = kernels::room({call.count, call.taps + 1, call.channels}, first.options());
  call.grad_y = timed(grads);
  call.grad_x = timed(grad_x);
  call.grad_final = data(last);
  call.grad_initial = first.data_ptr<float>();
  call.sums = sums.data_ptr<float>();
  call.grad_weight = weights.data_ptr<float>();
  run_backward(call, kernels::parallel());
  return {grad_x, weights.narrow(0, 0, call.taps).t(), weights.select(0, call.taps), first};
}

}  // namespace cortado::convolution
