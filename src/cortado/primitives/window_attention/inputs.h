// Window attention's checked inputs and its results, shared by all implementations.
#pragma once

#include "cortado/primitives/types.h"
#include "cortado/primitives/window_attention/visible.h"

namespace cortado {

// The operator's inputs (shapes in op.h), and what is derived from them.
struct AttentionInputs {
  Tensor q, k, v;
  OptionalTensor extra_k, extra_v, extra_mask, first_key;
  bool packed = false;  // the extra set has one row per sequence instead of one per batch row
  double scale = 1.0;
  std::optional<double> softcap;
  VisibleKeys visible;
};

// o [B,Tq,H,V] in v's type; lse, row_max and denominator [B,Tq,H] in the accumulation type. denominator is
// Σ exp(score - row_max), or 1 for a query that sees no key.
struct AttentionOutputs {
  Tensor o, lse, row_max, denominator;
};

// Gradients in the inputs' types and shapes; undefined for an absent extra set.
struct InputGradients {
  Tensor q, k, v, extra_k, extra_v;
};

namespace window {

// --- By the CPU's kernel (on_cpu.cpp): float32 or 16-bit types. ---
// The backward kernel additionally needs more queries than decoding has, and cannot combine an extra set with a
// gradient of row_max. grad_lse and grad_row_max may be undefined.

bool kernel_takes(const AttentionInputs& inputs);
AttentionOutputs forward_by_kernel(const AttentionInputs& inputs);
bool backward_kernel_takes(const AttentionInputs& inputs, const Tensor& grad_row_max);
InputGradients backward_by_kernel(const AttentionInputs& inputs, const AttentionOutputs& outputs, const Tensor& grad_o,
                                  const Tensor& grad_lse, const Tensor& grad_row_max);

// --- By ATen (by_aten.cpp), in blocks of queries: memory O(T). ---

AttentionOutputs forward_by_aten(const AttentionInputs& inputs);
InputGradients backward_by_aten(const AttentionInputs& inputs, const Tensor& grad_o, const Tensor& grad_lse,
                                const Tensor& grad_row_max);

}  // namespace window

}  // namespace cortado
