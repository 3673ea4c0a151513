// The chunked form of the delta scan, forward and backward.
#pragma once

#include <ATen/ATen.h>

namespace cortado::delta {

using at::Tensor;

// The number of heads h of each timed input divides H and is broadcast to it (as repeat_interleave).
struct ScanInputs {
  Tensor q, k;     // [B,T,h,K], q not yet scaled: that is left to the caller
  Tensor v;        // [B,T,h,V]
  Tensor beta;     // [B,T,h]
  Tensor g;        // [B|1,T,h], [B|1,T,h,K] or undefined
  Tensor initial;  // [B,H,K,V] or undefined = 0
};

struct ScanOptions {
  int64_t heads;        // H
  at::ScalarType type;  // to accumulate in
  int64_t chunk = 64;   // largest chunk, a power of two
  // Long inputs are worked on in segments of about this many elements (B·T·H·max(K,V)), so that the temporary memory
  // does not grow with T.
  int64_t segment_elements = int64_t{1} << 22;
  bool want_gate = false;  // of the backward
};

struct ScanOutputs {
  Tensor o, final_state;  // [B,T,H,V], [B,H,K,V]
};
ScanOutputs scan(const ScanInputs& in, const ScanOptions& options);

// Gradients, with all H heads; g [B,T,H(,K)] if wanted.
struct ScanGradients {
  Tensor q, k, v, beta, g, initial;
};
// o [B,T,H,V] is the gradient of the output, final_state [B,H,K,V] of the last state, or undefined = 0.
ScanGradients scan_backward(const ScanInputs& in, const ScanOutputs& gradient, const ScanOptions& options);

}  // namespace cortado::delta
