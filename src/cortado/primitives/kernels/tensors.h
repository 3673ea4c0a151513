// Torch's side of the CPU kernels: tensors as kernels see them, threads, and whether kernels may be used.
#pragma once

#include <ATen/ATen.h>

#include <initializer_list>

#include "cortado/primitives/kernels/kernel.h"

namespace cortado::kernels {

using at::Tensor;

// Whether kernels are enabled and all defined tensors are plain CPU tensors of float32, bfloat16 or float16.
bool usable(std::initializer_list<Tensor> tensors);

// [B|1,T,h,X] or [B|1,T,h], to be read or written as if it had `heads` heads: each head of the tensor serves heads/h
// consecutive ones. Undefined: no data.
Timed timed(const Tensor& x, int64_t heads);

// plain: x as contiguous float32; undefined stays undefined. numbers: its data, or null.
inline Tensor plain(const Tensor& x) { return x.defined() ? x.to(at::kFloat).contiguous() : x; }
inline float* numbers(const Tensor& x) { return x.defined() ? x.data_ptr<float>() : nullptr; }

// x, or a copy, with a contiguous last dimension.
Tensor dense_rows(const Tensor& x);

// Float32 [B,T,D] with its rows dense.
Channels channels(const Tensor& x);

// Contiguous float32 [rows,h,K,V]. If it has fewer than `heads` heads, each serves several, as in timed().
States states(const Tensor& x, int64_t heads);

// Memory for a result: at::empty, from kept_memory if it is large.
Tensor room(at::IntArrayRef sizes, const at::TensorOptions& options);

// torch's threads.
Parallel parallel();
// torch's threads, but one thread if `products` multiplications take less time than waking another thread.
Parallel parallel(int64_t products);
constexpr int64_t kAnExponential = 16;  // multiplications that take as long as one exponential

}  // namespace cortado::kernels
