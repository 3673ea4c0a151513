// Diagonal state-space systems: with a complex state, h' = Λ h + B u, sampled at steps of Δ (zero-order hold); and those
// that do not change with time, N states for each channel, computed in chunks: no state is formed for every token.
#pragma once

#include <string>

#include "cortado/nn/batch.h"
#include "cortado/nn/state.h"
#include "cortado/nn/wide.h"

namespace cortado {

// h_t = exp(ΔΛ) h_{t-1} + (exp(ΔΛ) - 1)/Λ · B u_t. Λ = -exp(log_decay) + i·frequency, Δ = exp(log_step).
struct Discretized {
  Tensor log_a;  // ΔΛ, complex
  Tensor input;  // (exp(ΔΛ) - 1)/Λ, complex; exact to rounding for small ΔΛ, too
};
// log_step broadcasts against log_decay and frequency. `type`: kFloat or kDouble, of the results' parts.
Discretized discretize(const Tensor& log_step, const Tensor& log_decay, const Tensor& frequency, at::ScalarType type);

// h_t[d,n] = exp(log_a[d,n]) h_{t-1}[d,n] + input[d,n] u_t[d],  y_t[d] = Re Σ_n read[d,n] h_t[d,n].
struct ChannelSystem {
  Tensor log_a;  // [D,N], real (-inf allowed) or complex; real parts <= 0
  Tensor input;  // [D,N] of that kind; undefined: 1
  Tensor read;   // [D,N] of that kind
};

// y [B,T,D] of u [B,T,D], float32 or float64 as the system. With a state, its tensor `name`, [rows,D·N] or as (real,
// imaginary) pairs [rows,D·N,2], is where h starts and where its last value goes. `reverse` runs from the last token to
// the first.
//
// A chunk of C tokens is three matrices a channel: a Toeplitz one of the impulse response K_j = Re Σ_n read input a^j
// from the chunk's inputs to its outputs, one from its inputs to the state after it, and one from the state before it
// to its outputs. Only states pass from chunk to chunk, in T/C steps. Memory O(T·D + T/C·D·N).
Tensor channel_ssm(const ChannelSystem& system, const Tensor& u, const Batch& batch, SequenceState* state,
                   const std::string& name, bool reverse = false);

// A parameter's logarithm uniform between log(low) and log(high).
Tensor log_uniform(at::IntArrayRef shape, double low, double high);
// The bias before a softplus that makes step sizes Δ start log-uniform in [0.001, 0.1]: softplus⁻¹(Δ).
Tensor initial_step_bias(at::IntArrayRef shape);

// Σ_{s<=t} kernel[t-s] ⊙ u_s: for definitions. kernel [T,D], u [B,T,D].
Tensor convolve_reference(const Tensor& kernel, const Tensor& u);

}  // namespace cortado
