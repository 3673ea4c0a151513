// The blocked form of window attention: blocks of queries against the span of keys they can see, forward and backward.
#pragma once

#include "cortado/primitives/types.h"
#include "cortado/primitives/window_attention/plan.h"

namespace cortado {

// Checked inputs as the operator got them (shapes in op.h), and the numbers that follow from them.
struct BlockedInputs {
  Tensor q, k, v;
  OptionalTensor extra_k, extra_v, extra_mask, first_key;
  bool packed = false;  // the extra set has one row a sequence instead of one a batch row
  double scale = 1.0;
  std::optional<double> softcap;
  VisibleKeys visible;
};

// o [B,Tq,H,V] in v's type; lse, row_max and denominator [B,Tq,H] in the accumulation type. denominator is
// Σ exp(score - row_max), 1 for a query that sees nothing.
struct BlockedOutputs {
  Tensor o, lse, row_max, denominator;
};
BlockedOutputs blocked_forward(const BlockedInputs& inputs);

// Gradients in the inputs' types and shapes; those of the extra set are undefined without one.
struct BlockedGradients {
  Tensor q, k, v, extra_k, extra_v;
};
// grad_lse and grad_row_max may be undefined.
BlockedGradients blocked_backward(const BlockedInputs& inputs, const BlockedOutputs& outputs, const Tensor& grad_o,
                                  const Tensor& grad_lse, const Tensor& grad_row_max);

// The same by the kernel (on_cpu.cpp), where it computes this: float32 or 16-bit types on the CPU. The backward also
// wants more queries than decoding has, and of an extra set no gradient of row_max.
namespace window {
bool kernel_takes(const BlockedInputs& inputs);
BlockedOutputs forward_by_kernel(const BlockedInputs& inputs);
bool backward_kernel_takes(const BlockedInputs& inputs, const Tensor& grad_row_max);
BlockedGradients backward_by_kernel(const BlockedInputs& inputs, const BlockedOutputs& outputs, const Tensor& grad_o,
                                    const Tensor& grad_lse, const Tensor& grad_row_max);
}  // namespace window

}  // namespace cortado
