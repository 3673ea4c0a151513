// latte_scan by the kernels for GPUs.
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

// With states in float32, without gaps.
GpuLatteInputs with_plain_states(const GpuLatteInputs& in);

// Undefined: 0.
struct GpuLatteGradients {
  Tensor query, theta, v, state, normalizer;
};

// Whether they compute this: bfloat16 logits and values on a GPU that has kernels, as many heads everywhere, L and V
// multiples of 8 up to 128.
bool gpu_takes(const GpuLatteInputs& in);

// `parts`: of time; 0: as many as fill the GPU.
LatteResult read_on_gpu(const GpuLatteInputs& in, cuda::Machine& machine, int64_t parts = 0);

// latte_scores (scores.h): of queries [B,T,H,K] in `query`, of v's type, and keys in `v`. o: float32 [B,T,H,L].
LatteResult scores_on_gpu(const GpuLatteInputs& in, cuda::Machine& machine, int64_t parts = 0);

// `given`: of o (in `v`), of the last state and of its sums. Derivatives in 16 bits, those of states in float32.
GpuLatteGradients differentiate_on_gpu(const GpuLatteInputs& in, const GpuLatteGradients& given, cuda::Machine& machine,
                                       int64_t parts = 0);
GpuLatteGradients differentiate_scores_on_gpu(const GpuLatteInputs& in, const GpuLatteGradients& given,
                                              cuda::Machine& machine, int64_t parts = 0);

}  // namespace cortado::latent
