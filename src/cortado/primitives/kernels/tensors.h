// Torch's side of the kernels: tensors as kernels see them, threads, and whether a kernel may be used at all.
#pragma once

#include <ATen/ATen.h>

#include <initializer_list>

#include "cortado/primitives/kernels/kernel.h"

namespace cortado::kernels {

using at::Tensor;

// Whether kernels are enabled and all of these (undefined ones apart) are ordinary CPU tensors of float32, bfloat16 or
// float16.
bool usable(std::initializer_list<Tensor> tensors);

// [B|1,T,h,X] or [B|1,T,h], to be read or written as if it had `heads` heads, each of the tensor's for as many in a
// row. Undefined: no data.
Timed timed(const Tensor& x, int64_t heads);

// Float32 and contiguous; undefined stays undefined. And its numbers, or null.
inline Tensor plain(const Tensor& x) { return x.defined() ? x.to(at::kFloat).contiguous() : x; }
inline float* numbers(const Tensor& x) { return x.defined() ? x.data_ptr<float>() : nullptr; }

// x, or a copy where that is not so, with the last dimension's numbers side by side.
Tensor dense_rows(const Tensor& x);

// Float32 [B,T,D] with its rows dense.
Channels channels(const Tensor& x);

// Contiguous float32 [rows,h,K,V], likewise.
States states(const Tensor& x, int64_t heads);

// Memory for a result: at::empty, from kept_memory where it is large.
Tensor room(at::IntArrayRef sizes, const at::TensorOptions& options);

// torch's threads.
Parallel parallel();
// The same, but one thread where there are so few multiplications that another would not be awake before they are done.
Parallel parallel(int64_t products);
constexpr int64_t kAnExponential = 16;  // products that take as long as one

}  // namespace cortado::kernels
