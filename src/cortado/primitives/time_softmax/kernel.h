// Softmaxes over time on the CPU in float32. No torch here.
#pragma once

#include "cortado/primitives/kernels/kernel.h"

namespace cortado::softmax {

using kernels::Channels;

// Dense: row n is batch row n. Packed: row n is tokens bounds[n] .. bounds[n + 1] of the only batch row. States
// [rows,D] are contiguous; null initial states: -inf for the maximum, 0 for the normaliser.
struct SoftmaxKernel {
  int64_t rows, tokens, channels;
  const int64_t* bounds = nullptr;
  Channels theta = {};
  const float *initial_maximum = nullptr, *initial_normalizer = nullptr;

  Channels keys = {}, gate = {}, maximum = {}, normalizer = {};
  float *last_maximum = nullptr, *last_normalizer = nullptr;
};

// Results are bit-identical on any number of threads.
void run_softmax(const SoftmaxKernel& call, const kernels::Parallel& parallel);

}  // namespace cortado::softmax
