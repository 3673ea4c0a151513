// The elementwise scan on the CPU in float32, forward and backward. No torch here.
#pragma once

#include "cortado/primitives/kernels/kernel.h"

namespace cortado::elementwise {

using kernels::Channels;

// Dense: row n is batch row n. Packed: row n is tokens bounds[n] .. bounds[n + 1] of the only batch row. States
// [rows,D] are contiguous; null: the initial state is zero, or the final state is not wanted.
constexpr int64_t kMostTogether = 8;

struct ScanKernel {
  int64_t rows, tokens, channels;
  const int64_t* bounds = nullptr;
  bool reverse = false;
  Channels log_a, b, h;  // h is written forward and read backward
  const float* initial = nullptr;
  float* final_state = nullptr;

  // Backward only.
  Channels grad_h = {}, grad_log_a = {}, grad_b = {};
  const float* grad_final = nullptr;
  float* grad_initial = nullptr;

  // Set by run_*. together: channel strips per task, at most kMostTogether. parts: parts of time, each its own task.
  // passages: how every chunk of a part transforms the state that enters it.
  int64_t together = 1, parts = 1;
  float* passages = nullptr;
  bool past_caches = false;
};

void run_forward(const ScanKernel& scan, const kernels::Parallel& parallel);
void run_backward(const ScanKernel& scan, const kernels::Parallel& parallel);

}  // namespace cortado::elementwise
