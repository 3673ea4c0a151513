#include "cortado/primitives/common.h"
#include "cortado/primitives/elementwise_scan/op.h"

namespace cortado {
namespace {

// One dense batch: h_t = exp(log_a_t) h_{t-1} + b_t, token by token.
std::pair<Tensor, Tensor> token_by_token(const Tensor& log_a, const Tensor& b, Tensor h, bool reverse) {
  const int64_t tokens = b.size(1);
  std::vector<Tensor> outputs(tokens);
  for (int64_t i = 0; i < tokens; ++i) {
    const int64_t t = reverse ? tokens - 1 - i : i;
    h = log_a.select(1, t).exp() * h + b.select(1, t);
    outputs[t] = h;
  }
  return {tokens ? at::stack(outputs, 1) : b, h};
}

}  // namespace

std::tuple<Tensor, Tensor> elementwise_scan_reference(const Tensor& log_a, const Tensor& b,
                                                      const std::optional<Tensor>& initial_state,
                                                      const std::optional<Tensor>& cu_seqlens, bool reverse) {
  const Tensor start = initial_state
                           ? *initial_state
                           : at::zeros({cu_seqlens ? cu_seqlens->size(0) - 1 : b.size(0), b.size(2)}, b.options());
  if (!cu_seqlens) {
    auto [h, last] = token_by_token(log_a, b, start, reverse);
    return {h, last};
  }
  const auto bounds = sequence_bounds("elementwise_scan_reference", *cu_seqlens, b.size(1));
  std::vector<Tensor> outputs, states;
  for (size_t n = 0; n + 1 < bounds.size(); ++n) {
    const int64_t from = bounds[n], length = bounds[n + 1] - from;
    auto [h, last] = token_by_token(log_a.narrow(1, from, length), b.narrow(1, from, length),
                                    start.narrow(0, static_cast<int64_t>(n), 1), reverse);
    outputs.push_back(h);
    states.push_back(last);
  }
  return {at::cat(outputs, 1), at::cat(states, 0)};
}

}  // namespace cortado
