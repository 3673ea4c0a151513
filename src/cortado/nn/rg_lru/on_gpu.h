// What the RG-LRU's scan takes (nn/rg_lru/rg_lru.h), by kernels for GPUs.
#pragma once

#include "cortado/primitives/cuda/machine.h"
#include "cortado/primitives/types.h"

namespace cortado::elementwise {

// r and i of the gates, as their block-diagonal products leave them, [H,N,D/H] of the N tokens of x [B,T,D], float32 or
// bfloat16, x too; their biases and the slope float32 [D]; first bool [B,T].
struct RgLruInputs {
  Tensor r, i, x, slope, r_bias, i_bias, first;
};
struct RgLruWrites {
  Tensor log_a, b;  // float32 [B,T,D]
};
struct RgLruDerivatives {
  Tensor r, i, x, slope, r_bias, i_bias;
};

// Whether they compute this: D/H even, on a GPU that has kernels. Of the products only x is asked.
bool gpu_gates(const Tensor& x, int64_t heads);

// log_a = σ(r + b_r) slope, b = √(1 - a²) σ(i + b_i) x, or σ(i + b_i) x where `first`.
RgLruWrites rg_lru_on_gpu(const RgLruInputs& in, cuda::Machine& machine);
RgLruDerivatives rg_lru_gradient_on_gpu(const RgLruInputs& in, const Tensor& dlog_a, const Tensor& db,
                                        double largest_slope, cuda::Machine& machine);

// The same, differentiable, where the tensors are.
RgLruWrites rg_lru_gates(const RgLruInputs& in, double largest_slope);

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
