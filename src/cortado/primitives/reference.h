// Shared by the definitions (reference.cpp): the loop over tokens, sequence by sequence.
#pragma once

#include <functional>

#include "cortado/primitives/common.h"

namespace cortado {

// Computes token t's output [B,...] and updates the state [B,...].
using TokenStep = std::function<Tensor(int64_t t, Tensor& state)>;

// Runs `step` over the tokens of a batch, or of packed sequences, and returns the outputs [B,T,...] and the last
// states. `start` has one row per batch row or sequence. `nothing`: the outputs to return if there are no tokens.
inline TensorTuple<2> token_by_token(std::string_view op, const OptionalTensor& cu_seqlens, int64_t tokens,
                                     const Tensor& start, const Tensor& nothing, const TokenStep& step,
                                     bool reverse = false) {
  std::vector<int64_t> bounds{0, tokens};
  if (cu_seqlens) bounds = sequence_bounds(op, *cu_seqlens, tokens);
  Tensors outputs(tokens), states;
  for (size_t n = 0; n + 1 < bounds.size(); ++n) {
    Tensor state = cu_seqlens ? start.narrow(0, static_cast<int64_t>(n), 1) : start;
    for (int64_t i = bounds[n]; i < bounds[n + 1]; ++i) {
      const int64_t t = reverse ? bounds[n] + bounds[n + 1] - 1 - i : i;
      outputs[t] = step(t, state);
    }
    states.push_back(state);
  }
  return {tokens ? at::stack(outputs, 1) : nothing, states.empty() ? start : at::cat(states, 0)};
}

// The number of state rows: packed sequences, else batch rows.
inline int64_t state_rows(const Tensor& x, const OptionalTensor& cu_seqlens) {
  return cu_seqlens ? cu_seqlens->size(0) - 1 : x.size(0);
}

// A scan whose states are [rows,H,K,V]; k and v have all H heads. The last state is returned with `state_heads` heads.
struct MatrixScan {
  std::string_view op;
  Tensor k, v;
  int64_t state_heads;
  const OptionalTensor &initial_state, &cu_seqlens;
  bool reverse = false;
};

// As token_by_token().
inline TensorTuple<2> matrix_by_token(const MatrixScan& scan, const Tensor& nothing, const TokenStep& step) {
  const auto& [op, k, v, state_heads, initial_state, cu_seqlens, reverse] = scan;
  const int64_t heads = v.size(2);
  const Tensor start = initial_state ? expand_heads(initial_state->to(v.scalar_type()), heads, 1)
                                     : at::zeros({state_rows(v, cu_seqlens), heads, k.size(3), v.size(3)}, v.options());
  const auto [o, state] = token_by_token(op, cu_seqlens, v.size(1), start, nothing, step, reverse);
  return {o, state.unflatten(1, {state_heads, heads / state_heads}).select(2, 0)};
}

}  // namespace cortado
