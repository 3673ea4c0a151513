// What gated_scan, slot_scan and delta_scan have in common as operators: each says what it computes in the letters of
// chunked.h.
#pragma once

#include "cortado/primitives/gated_scan/chunked.h"
#include "cortado/primitives/operator.h"

namespace cortado::gated {

struct ScanCall {
  std::string_view name;
  const Tensor& query;
  bool read_keys;  // or along the values
  double factor;   // of what is read
  const OptionalTensor &initial_state, &cu_seqlens;
  int64_t state_heads;
  FormOptions options;   // without what is wanted
  FormInputs form = {};  // without the query, the states and the gradients

  ScanCall(std::string_view name, const Sizes& sizes, const Tensor& query, bool read_keys, double factor,
           at::ScalarType type, const OptionalTensor& initial_state, const OptionalTensor& cu_seqlens)
      : name(name),
        query(query),
        read_keys(read_keys),
        factor(factor),
        initial_state(initial_state),
        cu_seqlens(cu_seqlens),
        state_heads(sizes.number('S')),
        options{.heads = sizes.number('H'), .type = type} {}
};

// (o, final_state), by a kernel that takes it or by ATen.
TensorTuple<2> forward(ScanCall call);

// The derivatives with all heads, that of the query as y. A missing incoming gradient is zero.
FormOutputs backward(ScanCall call, const OptionalTensor& grad_o, const OptionalTensor& grad_state, bool want_gate);

// Their shapes' part of an operator's Meta kernel: sizes of letters K (keys) and V (values).
TensorTuple<2> outputs_meta(const Sizes& sizes, bool read_keys, const Tensor& v, at::ScalarType type);

// --- Gates: [B,T,h,K] per key channel, [B,T,h] per head, constant [h,K] or [h]. ---

// g's shape by its dimensions, for Sizes.
std::string_view gate_shape(const OptionalTensor& g);

// [B|1,T,h] or [B|1,T,h,K]: constant gates become timed ones of one batch row; undefined without gates.
Tensor timed_gate(const OptionalTensor& g, int64_t tokens);

// The gradient in g's shape and type, from that of the timed gate with all H heads, [B,T,H(,K)].
Tensor gate_gradient(const Tensor& wide, const Tensor& g);

}  // namespace cortado::gated
