// Diagonal state-space systems. One kind has a complex state, h' = Λ h + B u, sampled at steps of Δ (zero-order hold).
// The other is time-invariant with N states per channel, and is computed in chunks without forming a state per token.
#pragma once

#include <string>

#include "cortado/nn/batch.h"
#include "cortado/nn/state.h"
#include "cortado/nn/wide.h"

namespace cortado {

// h_t = exp(ΔΛ) h_{t-1} + (exp(ΔΛ) - 1)/Λ · B u_t. Λ = -exp(log_decay) + i·frequency, Δ = exp(log_step).
struct Discretized {
  Tensor log_a;  // ΔΛ, complex
  Tensor input;  // (exp(ΔΛ) - 1)/Λ, complex; exact to rounding, also for small ΔΛ
};
// log_step broadcasts against log_decay and frequency. `type`: kFloat or kDouble, of the real and imaginary parts.
Discretized discretize(const Tensor& log_step, const Tensor& log_decay, const Tensor& frequency, at::ScalarType type);

// h_t[d,n] = exp(log_a[d,n]) h_{t-1}[d,n] + input[d,n] u_t[d],  y_t[d] = Re Σ_n read[d,n] h_t[d,n].
struct ChannelSystem {
  Tensor log_a;  // [D,N], real (-inf allowed) or complex; real parts <= 0
  Tensor input;  // [D,N] of log_a's kind; undefined: 1
  Tensor read;   // [D,N] of log_a's kind
};

// Returns y [B,T,D] for u [B,T,D], float32 or float64 as the system. With a state, h starts from its tensor `name` and
// its last value is written there: [rows,D·N], or as (real, imaginary) pairs [rows,D·N,2]. `reverse` runs from the last
// token to the first.
//
// A chunk of C tokens needs three matrices per channel: a Toeplitz matrix of the impulse response K_j = Re Σ_n read
// input a^j from the chunk's inputs to its outputs, one from its inputs to the state after it, and one from the state
// before it to its outputs. Only states pass from chunk to chunk, in T/C steps. Memory is O(T·D + T/C·D·N).
Tensor channel_ssm(const ChannelSystem& system, const Tensor& u, const Batch& batch, SequenceState* state,
                   const std::string& name, bool reverse = false);

// Draws a parameter's logarithm uniformly between log(low) and log(high).
Tensor log_uniform(at::IntArrayRef shape, double low, double high);
// Returns a bias before a softplus such that step sizes Δ start log-uniform in [0.001, 0.1]: softplus⁻¹(Δ).
Tensor initial_step_bias(at::IntArrayRef shape);

// Returns Σ_{s<=t} kernel[t-s] ⊙ u_s, for definitions. kernel [T,D], u [B,T,D].
Tensor convolve_reference(const Tensor& kernel, const Tensor& u);

}  // namespace cortado
