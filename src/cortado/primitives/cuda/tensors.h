// Torch's side of the kernels for GPUs: tensors as they read them.
#pragma once

#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "cortado/primitives/cuda/machine.h"
#include "cortado/primitives/cuda/timed.h"
#include "cortado/primitives/cuda/token_gpu.h"

namespace cortado::cuda {

using at::Tensor;

// That of the GPU where x is.
Machine& machine_of(const Tensor& x);

// Bounds of packed sequences where the kernels read them, or null: a dense batch of rows of so many tokens.
struct GpuBounds {
  Tensor numbers;
  int64_t longest;  // of the rows

  GpuBounds(const std::vector<int64_t>* bounds, int64_t tokens, at::Device device);
  const long long* get() const;
};

// Whether x has numbers: where a graph is traced tensors are shapes alone.
inline bool has_numbers(const Tensor& x) { return !x.unsafeGetTensorImpl()->is_python_dispatch(); }

// Whether the device is a GPU that has kernels.
bool has_kernels(at::Device device);

// Whether kernels can read it: numbers, and some of them, on a GPU that has kernels.
bool is_there(const Tensor& x);

// The types of at most 32 bits.
inline constexpr std::initializer_list<at::ScalarType> kNarrow = {at::kFloat, at::kBFloat16, at::kHalf};

// Whether kernels can read all of these (undefined ones apart), each of one of these types.
bool are_there(std::initializer_list<Tensor> tensors, std::initializer_list<at::ScalarType> types);

// A type of 16 bits; and what a kernel is compiled with for it (device.h) beside other macros.
inline bool is_short(at::ScalarType type) { return type == at::kBFloat16 || type == at::kHalf; }
inline std::string variant_of(at::ScalarType type, std::string macros = {}) {
  if (type == at::kHalf) macros += macros.empty() ? "CORTADO_HALF" : " CORTADO_HALF";
  return macros;
}

inline bool is_differentiated(const Tensor& x) { return at::GradMode::is_enabled() && x.requires_grad(); }

// float32's data; undefined: null.
inline const float* floats(const Tensor& x) { return x.defined() ? x.const_data_ptr<float>() : nullptr; }
inline float* mutable_floats(const Tensor& x) { return x.defined() ? x.mutable_data_ptr<float>() : nullptr; }

// int64, as kernels call it.
const long long* long_numbers(const Tensor& x);

// Without gaps, from a multiple of 16 bytes on; x, or a copy that is so (undefined stays undefined).
bool is_dense(const Tensor& x);
Tensor dense(const Tensor& x);

// [B,T,h,width], or a copy, whose rows are pieces of 16 bytes.
Tensor in_pieces(const Tensor& x);

// [B|1,T,h] or [B|1,T,h,width]; undefined: no data. One batch row stands for all.
GpuTimed timed(const Tensor& x);

// One token [B|1,1,h] or [B|1,1,h,width] in a type that kernels of one token read, the last dimension's numbers side by
// side; undefined stays undefined. token() is of such a tensor.
Tensor readable(const Tensor& x);
GpuToken token(const Tensor& x);

// What a grid has at most along y and z, where many kernels have the batch's rows.
constexpr int64_t kMostRows = (1 << 16) - 1;

// Of kernels that go through rows of numbers of up to `width` (rows.h), in a batch of up to kMostRows.
Blocks row_blocks(int64_t batch, int64_t rows, int64_t width);

}  // namespace cortado::cuda
