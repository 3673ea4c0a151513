#include "cortado/primitives/cuda/tensors.h"

#include <algorithm>
#include <climits>

#include "cortado/primitives/cuda/runtime.h"

namespace cortado::cuda {

Machine& machine_of(const Tensor& x) { return machine(x.device().index()); }

GpuBounds::GpuBounds(const std::vector<int64_t>* bounds, int64_t tokens, at::Device device) : longest(tokens) {
  if (!bounds) return;
  numbers = at::tensor(*bounds, at::kLong).to(device);
  longest = 0;
  for (size_t i = 1; i < bounds->size(); ++i) longest = std::max(longest, (*bounds)[i] - (*bounds)[i - 1]);
}

const long long* GpuBounds::get() const { return numbers.defined() ? long_numbers(numbers) : nullptr; }

const long long* long_numbers(const Tensor& x) {
  return reinterpret_cast<const long long*>(x.const_data_ptr<int64_t>());
}

bool has_kernels(at::Device device) { return device.is_cuda() && usable(device.index()); }

bool is_there(const Tensor& x) { return x.is_cuda() && has_numbers(x) && x.numel() > 0 && has_kernels(x.device()); }

bool are_there(std::initializer_list<Tensor> tensors, std::initializer_list<at::ScalarType> types) {
  return std::all_of(tensors.begin(), tensors.end(), [&](const Tensor& x) {
    return !x.defined() || (is_there(x) && std::find(types.begin(), types.end(), x.scalar_type()) != types.end());
  });
}

bool is_dense(const Tensor& x) {
  return x.is_contiguous() && reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0;
}

Tensor dense(const Tensor& x) {
  if (!x.defined()) return x;
  const Tensor whole = x.contiguous();
  return is_dense(whole) ? whole : whole.clone();
}

Tensor in_pieces(const Tensor& x) {
  const int64_t numbers = 16 / x.element_size();
  const auto whole = [numbers](int64_t stride) { return stride % numbers == 0; };
  const bool good = x.stride(3) == 1 && whole(x.stride(0)) && whole(x.stride(1)) && whole(x.stride(2)) &&
                    x.stride(1) <= INT_MAX && reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0;
  return good ? x : x.contiguous();
}

GpuTimed timed(const Tensor& x) {
  if (!x.defined()) return {nullptr, 0, 0, 0, 1};
  const int64_t batch = x.size(0) == 1 ? 0 : x.stride(0);
  return {x.data_ptr(), batch, x.stride(2), int(x.stride(1)), int(x.size(2))};
}

Tensor readable(const Tensor& x) {
  if (!x.defined()) return x;
  const auto type = x.scalar_type();
  const Tensor typed = type == at::kFloat || type == at::kBFloat16 ? x : x.to(at::kFloat);
  return typed.stride(-1) == 1 || typed.size(-1) == 1 ? typed : typed.contiguous();
}

GpuToken token(const Tensor& x) {
  if (!x.defined()) return {nullptr, 0, 0, 1, 0};
  return {x.const_data_ptr(), x.size(0) == 1 ? 0 : x.stride(0), x.stride(2), int(x.size(2)),
          x.scalar_type() == at::kBFloat16};
}

Blocks row_blocks(int64_t batch, int64_t rows, int64_t width) {
  const int64_t each = rows_of_block(int(width));
  return {unsigned((rows + each - 1) / each), unsigned(batch)};
}

}  // namespace cortado::cuda
