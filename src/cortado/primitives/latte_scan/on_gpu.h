// latte_scan by GPU kernels.
#pragma once

#include "cortado/primitives/cuda/machine.h"
#include "cortado/primitives/latte_scan/op.h"

namespace cortado::latent {

struct GpuLatteInputs {
  Tensor query, theta, v;                        // [B,T,H,.]
  Tensor state, normalizer, maximum;             // float32 [rows,H,..], or undefined
  bool softmax = true;                           // query has logits
  const std::vector<int64_t>* bounds = nullptr;  // of packed sequences
};

// The inputs with states as contiguous float32.
GpuLatteInputs with_plain_states(const GpuLatteInputs& in);

// Gradients; undefined: 0.
struct GpuLatteGradients {
  Tensor query, theta, v, state, normalizer;
};

// Whether the kernels compute this: bfloat16 logits and values on a GPU on which kernels can run, one head count
// everywhere, L and V multiples of 8 up to 128.
bool gpu_takes(const GpuLatteInputs& in);

// Computes the output and the states. `parts`: parts of time; 0: as many as fill the GPU.
LatteResult read_on_gpu(const GpuLatteInputs& in, cuda::Machine& machine, int64_t parts = 0);

// latte_scores (scores.h): `query` has the queries [B,T,H,K], of v's type, and `v` the keys. o: float32 [B,T,H,L].
LatteResult scores_on_gpu(const GpuLatteInputs& in, cuda::Machine& machine, int64_t parts = 0);

// `given`: gradients of o (as `v`), of the last state and of its sums. Derivatives are 16-bit, those of states float32.
GpuLatteGradients differentiate_on_gpu(const GpuLatteInputs& in, const GpuLatteGradients& given, cuda::Machine& machine,
                                       int64_t parts = 0);
GpuLatteGradients differentiate_scores_on_gpu(const GpuLatteInputs& in, const GpuLatteGradients& given,
                                              cuda::Machine& machine, int64_t parts = 0);

}  // namespace cortado::latent
