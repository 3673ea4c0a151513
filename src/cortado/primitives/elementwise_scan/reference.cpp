#include "cortado/primitives/reference.h"

#include "cortado/primitives/elementwise_scan/op.h"

namespace cortado {

TensorTuple<2> elementwise_scan_reference(const Tensor& log_a, const Tensor& b, const OptionalTensor& initial_state,
                                          const OptionalTensor& cu_seqlens, bool reverse) {
  const Tensor start = initial_state ? *initial_state : at::zeros({state_rows(b, cu_seqlens), b.size(2)}, b.options());
  const auto step = [&](int64_t t, Tensor& h) { return h = log_a.select(1, t).exp() * h + b.select(1, t); };
  return token_by_token("elementwise_scan_reference", cu_seqlens, b.size(1), start, b, step, reverse);
}

}  // namespace cortado
