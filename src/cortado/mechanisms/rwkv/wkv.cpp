#include "cortado/mechanisms/rwkv/wkv.h"

#include "cortado/mechanisms/rwkv/shift.h"
#include "cortado/primitives/elementwise_scan/op.h"

namespace cortado {

// With m_t = max(m_{t-1} - w, k_t), the sums times exp(-m_t) are scans whose exponents are never positive. The result
// does not depend on m, so m has no gradient; the gate depends on w.
Tensor wkv(const Tensor& k, const Tensor& v, const Tensor& w, const Tensor& u, WkvState* state,
           const OptionalTensor& cu_seqlens) {
  OptionalTensor numerator, denominator, maximum;
  if (state) {
    numerator = state->numerator;
    denominator = state->denominator;
    maximum = state->maximum.unsqueeze(1);
  }
  const auto [m4, before4, last] = running_max(k.unsqueeze(2), maximum, cu_seqlens, w.unsqueeze(0));
  const Tensor m = m4.squeeze(2), before = before4.squeeze(2);
  const Tensor gate = (before - m) - w, weight = (k - m).exp();  // difference of the maxima first, because it is exact
  const auto [sums, last_sum] = elementwise_scan(gate, weight * v, numerator, cu_seqlens);
  const auto [totals, last_total] = elementwise_scan(gate, weight, denominator, cu_seqlens);
  // The read combines the sums before the current token with the token itself, weighted by exp(k + u).
  const auto past = [&](const Tensor& x, const OptionalTensor& start) {
    return std::get<0>(shift(x, start ? std::optional<Tensor>(start->unsqueeze(1)) : std::nullopt, cu_seqlens));
  };
  const Tensor now = k + u, peak = at::maximum(before, now).detach();
  const Tensor of_past = (before - peak).exp(), of_now = (now - peak).exp();
  if (state) *state = {last_sum, last_total, last.squeeze(1)};
  return (of_past * past(sums, numerator) + of_now * v) / (of_past * past(totals, denominator) + of_now);
}

Tensor wkv_reference(const Tensor& k, const Tensor& v, const Tensor& w, const Tensor& u) {
  const int64_t tokens = k.size(1);
  const Tensor place = at::arange(tokens, w.options().requires_grad(false));
  const Tensor age = (place.unsqueeze(1) - 1 - place.unsqueeze(0)).unsqueeze(2);  // t-1-s [T,T,1]
  const Tensor past = k.unsqueeze(1) - age * w, now = (k + u).unsqueeze(1);       // [B,T,T,A], s second
  const Tensor logits = at::where(age == -1, now, past).masked_fill(age < -1, -INFINITY);
  return (at::softmax(logits, 2) * v.unsqueeze(1)).sum(2);
}

}  // namespace cortado
