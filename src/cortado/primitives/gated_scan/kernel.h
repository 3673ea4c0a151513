// The gated scan on the CPU in float32 arithmetic, forward and backward. No torch here.
#pragma once

#include "cortado/primitives/kernels/kernel.h"

namespace cortado::gated {

// The form L of form.h. A derivative is computed if memory for it is given.
struct ScanKernel {
  int64_t rows, tokens, heads, keys, values;
  const int64_t* bounds = nullptr;  // packed: row n is tokens bounds[n] .. bounds[n + 1] of the only batch row
  bool reverse = false;

  // Inputs. y and w are multiplied by their factors when read. g: [B,T,h,K] if gate_per_channel, else [B,T,h].
  kernels::Timed y = {}, x = {}, w = {}, v = {}, g = {};
  bool gate_per_channel = false, gates_are_factors = false;  // gates are logs <= 0, or factors
  float y_factor = 1, w_factor = 1;
  const float* bonus = nullptr;  // [heads, K]
  kernels::States initial = {}, final_grad = {};

  // Outputs, all with `heads` heads. A read wants dw or dy alone; a backward wants dx and dv, and dy or dw or both.
  kernels::Timed dy = {}, dx = {}, dw = {}, dv = {}, dg = {};
  float* dbonus = nullptr;  // [rows, heads, K]
  kernels::States final_state = {}, initial_grad = {};
};

// Results are bit-identical on any number of threads.
void run_scan(const ScanKernel& scan, const kernels::Parallel& parallel);

// One token: computes dy or dw, no backward; the state is read and written once. Here initial and final_state have
// equal head counts. K and V are at most kStepWidth.
inline constexpr int64_t kStepWidth = 1024;
void run_step(const ScanKernel& scan, const kernels::Parallel& parallel);

}  // namespace cortado::gated
