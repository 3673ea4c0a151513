// The gates and the single-token step of the RG-LRU (nn/rg_lru/rg_lru.h) by GPU kernels.
#pragma once

#include "cortado/primitives/cuda/machine.h"
#include "cortado/primitives/types.h"

namespace cortado::elementwise {

// r and i: the gates' block-diagonal products, [H,N,D/H] for the N tokens of x [B,T,D]. r, i and x are float32 or
// bfloat16; the gates' biases and the slope are float32 [D]; first is bool [B,T].
struct RgLruInputs {
  Tensor r, i, x, slope, r_bias, i_bias, first;
};
struct RgLruWrites {
  Tensor log_a, b;  // float32 [B,T,D]
};
struct RgLruDerivatives {
  Tensor r, i, x, slope, r_bias, i_bias;
};

// Whether the kernels compute this: D/H even, a GPU on which kernels can run. Asks x only, not the products.
bool gpu_gates(const Tensor& x, int64_t heads);

// log_a = σ(r + b_r) slope, b = √(1 - a²) σ(i + b_i) x, or σ(i + b_i) x where `first`.
RgLruWrites rg_lru_on_gpu(const RgLruInputs& in, cuda::Machine& machine);
RgLruDerivatives rg_lru_gradient_on_gpu(const RgLruInputs& in, const Tensor& dlog_a, const Tensor& db,
                                        double largest_slope, cuda::Machine& machine);

// rg_lru_on_gpu on the tensors' GPU, differentiable.
RgLruWrites rg_lru_gates(const RgLruInputs& in, double largest_slope);

// One token, not differentiable: x [B,1,D], start [B,D] float32, position int64 [B]. The others are bfloat16: weights
// [H,D/H,D/H] (in, out), D/H even, biases and lambda [D].
struct RgLruStepInputs {
  Tensor x, r_weight, r_bias, i_weight, i_bias, lambda, position, start;
  double sharpness;
};
struct RgLruStepMade {
  Tensor h;  // float32 [B,D]
  Tensor y;  // [B,1,D], in x's type
};
bool gpu_takes_step(const RgLruStepInputs& in);
RgLruStepMade rg_lru_step_on_gpu(const RgLruStepInputs& in, cuda::Machine& machine);
RgLruStepMade rg_lru_step(const RgLruStepInputs& in);

}  // namespace cortado::elementwise
