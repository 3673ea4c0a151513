// Diagonal state-space systems with a complex state, h' = Λ h + B u, sampled at steps of Δ (zero-order hold).
#pragma once

#include <ATen/ATen.h>

#include <string>

#include "cortado/nn/batch.h"
#include "cortado/nn/state.h"
#include "cortado/nn/wide.h"

namespace cortado {

using at::Tensor;

// h_t = exp(ΔΛ) h_{t-1} + (exp(ΔΛ) - 1)/Λ · B u_t. Λ = -exp(log_decay) + i·frequency, Δ = exp(log_step).
struct Discretized {
  Tensor log_a;  // ΔΛ, complex
  Tensor input;  // (exp(ΔΛ) - 1)/Λ, complex; exact to rounding for small ΔΛ, too
};
// log_step broadcasts against log_decay and frequency. `type`: kFloat or kDouble, of the results' parts.
Discretized discretize(const Tensor& log_step, const Tensor& log_decay, const Tensor& frequency, at::ScalarType type);

// h_t = exp(log_a) h_{t-1} + b_t; log_a complex [N], b real or complex [B,T,N]. With a state, its tensor `name`, real
// [rows,N,2], is where h starts and where its last value goes.
Tensor complex_scan(const Tensor& log_a, const Tensor& b, const Batch& batch, SequenceState* state,
                    const std::string& name, bool reverse = false);

// A parameter's logarithm uniform between log(low) and log(high).
Tensor log_uniform(at::IntArrayRef shape, double low, double high);
// The bias before a softplus that makes step sizes Δ start log-uniform in [0.001, 0.1]: softplus⁻¹(Δ).
Tensor initial_step_bias(at::IntArrayRef shape);

// Σ_{s<=t} kernel[t-s] ⊙ u_s: for definitions. kernel [T,D], u [B,T,D].
Tensor convolve_reference(const Tensor& kernel, const Tensor& u);

}  // namespace cortado
