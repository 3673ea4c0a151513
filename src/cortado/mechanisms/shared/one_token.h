// One token of a recurrent layer between its linear maps, on the CPU in float32 and not differentiated. Its arithmetic
// takes less time than the bookkeeping of a dozen small tensors, so layers compute it on plain memory.
#pragma once

#include <cmath>
#include <vector>

#include "cortado/nn/batch.h"
#include "cortado/nn/state.h"

namespace cortado::one_token {

// Whether x [rows, 1, D] continues `state`, whose tensors are contiguous float32, and plain memory may be used.
bool takes(const Tensor& x, const Batch& batch, const SequenceState* state);

// Memory for `count` numbers, uninitialised, which the calling thread keeps until its next call.
float* scratch(int64_t count);

inline float softplus(float x) { return x > 20 ? x : std::log1p(std::exp(x)); }
inline float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

}  // namespace cortado::one_token
