// Torch's side of the GPU kernels: tensors as kernels see them.
#pragma once

#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "cortado/primitives/cuda/machine.h"
#include "cortado/primitives/cuda/timed.h"
#include "cortado/primitives/cuda/token_gpu.h"

namespace cortado::cuda {

using at::Tensor;

// The machine of x's GPU.
Machine& machine_of(const Tensor& x);

// Bounds of packed sequences in GPU memory, or null for a dense batch of rows of `tokens` tokens.
struct GpuBounds {
  Tensor numbers;
  int64_t longest;  // the longest row's tokens

  GpuBounds(const std::vector<int64_t>* bounds, int64_t tokens, at::Device device);
  const long long* get() const;
};

// Whether x has data: while a graph is traced, tensors are shapes only.
inline bool has_numbers(const Tensor& x) { return !x.unsafeGetTensorImpl()->is_python_dispatch(); }

// Whether the device is a GPU on which kernels can run.
bool has_kernels(at::Device device);

// Whether kernels can read x: it has data, is not empty, and lies on a GPU on which kernels can run.
bool is_there(const Tensor& x);

// Floating-point types of at most 32 bits.
inline constexpr std::initializer_list<at::ScalarType> kNarrow = {at::kFloat, at::kBFloat16, at::kHalf};

// Whether kernels can read all defined tensors and each has one of the types.
bool are_there(std::initializer_list<Tensor> tensors, std::initializer_list<at::ScalarType> types);

// is_short: whether the type has 16 bits. variant_of: the macros to compile a kernel for it with (device.h), after
// `macros`.
inline bool is_short(at::ScalarType type) { return type == at::kBFloat16 || type == at::kHalf; }
inline std::string variant_of(at::ScalarType type, std::string macros = {}) {
  if (type == at::kHalf) macros += macros.empty() ? "CORTADO_HALF" : " CORTADO_HALF";
  return macros;
}

inline bool is_differentiated(const Tensor& x) { return at::GradMode::is_enabled() && x.requires_grad(); }

// Data of a float32 tensor; null if undefined.
inline const float* floats(const Tensor& x) { return x.defined() ? x.const_data_ptr<float>() : nullptr; }
inline float* mutable_floats(const Tensor& x) { return x.defined() ? x.mutable_data_ptr<float>() : nullptr; }

// Data of an int64 tensor, in the type that kernels use.
const long long* long_numbers(const Tensor& x);

// is_dense: contiguous and aligned to 16 bytes. dense: x, or a dense copy (undefined stays undefined).
bool is_dense(const Tensor& x);
Tensor dense(const Tensor& x);

// x [B,T,h,width], or a copy, such that every row starts at a multiple of 16 bytes.
Tensor in_pieces(const Tensor& x);

// x [B|1,T,h] or [B|1,T,h,width] as kernels see it; undefined: no data. A batch dimension of 1 is broadcast.
GpuTimed timed(const Tensor& x);

// readable: one token [B|1,1,h] or [B|1,1,h,width] in a type and with a contiguous last dimension, as single-token
// kernels read it; undefined stays undefined. token: such a tensor as kernels see it.
Tensor readable(const Tensor& x);
GpuToken token(const Tensor& x);

// The most blocks of a grid along y and z, where many kernels have the batch's rows.
constexpr int64_t kMostRows = (1 << 16) - 1;

// The grid of kernels that process rows elementwise (rows.h): widths up to `width`, batches of at most kMostRows.
Blocks row_blocks(int64_t batch, int64_t rows, int64_t width);

}  // namespace cortado::cuda
