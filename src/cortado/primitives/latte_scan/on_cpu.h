// The kernel of latte_scan, for torch's tensors.
#pragma once

#include <vector>

#include "cortado/primitives/latte_scan/op.h"

namespace cortado::latent {

struct Arguments {
  const Tensor &query, &theta, &v;
  const LatteState& start;
  const std::vector<int64_t>* bounds;  // of packed sequences, or null
  bool softmax;
};

// Undefined: 0, or not wanted.
struct OutputGradients {
  Tensor o, state, normalizer;
};
struct InputGradients {
  Tensor query, theta, v, state, normalizer;  // with all of the output's heads
};

// Whether the kernel computes with sums of this type on these tensors: float32 sums, ordinary CPU tensors.
bool kernel_takes(at::ScalarType type, const Arguments& in, const OutputGradients& gradients = {});

LatteResult latte_by_kernel(const Arguments& in);

// In the type of the argument if that has all the heads, else in float32.
InputGradients latte_gradients_by_kernel(const Arguments& in, const OutputGradients& gradients);

}  // namespace cortado::latent
