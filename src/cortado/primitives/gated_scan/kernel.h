// The gated scan's kernel: float32 arithmetic on the CPU, forward and backward. No torch here.
#pragma once

#include "cortado/primitives/kernels/kernel.h"

namespace cortado::gated {

// The form L of form.h: which of its derivatives are computed is said by where results are wanted.
struct ScanKernel {
  int64_t rows, tokens, heads, keys, values;
  const int64_t* bounds =
      nullptr;  // packed sequences: row n is the tokens bounds[n] to bounds[n + 1] of the only batch row
  bool reverse = false;

  // Given. y and w are multiplied by their factors when read. g: [B,T,h,K] or, not per channel, [B,T,h].
  kernels::Timed y = {}, x = {}, w = {}, v = {}, g = {};
  bool gate_per_channel = false, gates_are_factors = false;  // else logs, of factors up to 1
  float y_factor = 1, w_factor = 1;
  const float* bonus = nullptr;  // [heads, K]
  kernels::States initial = {}, final_grad = {};

  // Wanted, all with `heads` heads. A read is dw alone or dy alone; a backward has dx and dv, and dy or dw or both.
  kernels::Timed dy = {}, dx = {}, dw = {}, dv = {}, dg = {};
  float* dbonus = nullptr;  // [rows, heads, K]
  kernels::States final_state = {}, initial_grad = {};
};

// Every result is the same, bit for bit, on any number of threads.
void run_scan(const ScanKernel& scan, const kernels::Parallel& parallel);

// One token, dy or dw wanted, no backward: the state is read and written once. initial and final_state have the same
// heads here. Keys and values up to kStepWidth.
inline constexpr int64_t kStepWidth = 1024;
void run_step(const ScanKernel& scan, const kernels::Parallel& parallel);

}  // namespace cortado::gated
