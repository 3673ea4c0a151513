// Torch's side of the kernels for GPUs: tensors as they read them.
#pragma once

#include <ATen/ATen.h>

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

// float32's data; undefined: null.
inline const float* floats(const Tensor& x) { return x.defined() ? x.const_data_ptr<float>() : nullptr; }
inline float* mutable_floats(const Tensor& x) { return x.defined() ? x.mutable_data_ptr<float>() : nullptr; }

// int64, as kernels call it.
const long long* long_numbers(const Tensor& x);

// x, or a copy, without gaps and from a multiple of 16 bytes on; undefined stays undefined.
Tensor dense(const Tensor& x);

// [B,T,h,width], or a copy, whose rows are pieces of 16 bytes.
Tensor in_pieces(const Tensor& x);

// [B|1,T,h] or [B|1,T,h,width]; undefined: no data. One batch row stands for all.
GpuTimed timed(const Tensor& x);

// One token [B|1,1,h] or [B|1,1,h,width] in a type that kernels of one token read, the last dimension's numbers side by
// side; undefined stays undefined. token() is of such a tensor.
Tensor readable(const Tensor& x);
GpuToken token(const Tensor& x);

// Of kernels that go through rows of numbers of up to `width` (rows.h).
Blocks row_blocks(int64_t batch, int64_t rows, int64_t width);

}  // namespace cortado::cuda
