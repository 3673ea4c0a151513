// What the RG-LRU's scan takes (nn/rg_lru.h), by kernels for GPUs.
#pragma once

#include "cortado/primitives/cuda/machine.h"
#include "cortado/primitives/types.h"

namespace cortado::elementwise {

struct RgLruWrites {
  Tensor log_a, b;  // float32 [B,T,D]
};
struct RgLruDerivatives {
  Tensor r, i, x, slope;
};

// Whether they compute this: float32 or bfloat16 r, i and x [B,T,D], D even, and a float32 slope [D] on a GPU that has
// kernels.
bool gpu_gates(std::initializer_list<Tensor> timed, const Tensor& slope);

// log_a = σ(r) slope, b = √(1 - a²) σ(i) x, or σ(i) x where `first` (bool [B,T]).
RgLruWrites rg_lru_on_gpu(const Tensor& r, const Tensor& i, const Tensor& x, const Tensor& slope, const Tensor& first,
                          cuda::Machine& machine);
RgLruDerivatives rg_lru_gradient_on_gpu(const Tensor& r, const Tensor& i, const Tensor& x, const Tensor& slope,
                                        const Tensor& first, const Tensor& dlog_a, const Tensor& db,
                                        double largest_slope, cuda::Machine& machine);

// The same, differentiable, where the tensors are.
RgLruWrites rg_lru_gates(const Tensor& r, const Tensor& i, const Tensor& x, const Tensor& slope, const Tensor& first,
                         double largest_slope);

// One token, without derivatives: x [B,1,D], start [B,D] float32, position int64 [B]. All else in bfloat16: weights
// [H,D/H,D/H] (in, out), D/H even, biases and lambda [D].
struct RgLruStepInputs {
  Tensor x, r_weight, r_bias, i_weight, i_bias, lambda, position, start;
  double sharpness;
};
struct RgLruStepMade {
  Tensor h;  // float32 [B,D]
  Tensor y;  // [B,1,D], of x's type
};
bool gpu_takes_step(const RgLruStepInputs& in);
RgLruStepMade rg_lru_step_on_gpu(const RgLruStepInputs& in, cuda::Machine& machine);
RgLruStepMade rg_lru_step(const RgLruStepInputs& in);

}  // namespace cortado::elementwise
