#include "cortado/mechanisms/mega/mixer.h"
#include "cortado/nn/diagonal_ssm.h"

namespace cortado {

Tensor DampedAverage::reference(const Tensor& x, bool reverse) const {
  const Tensor alpha = alpha_.sigmoid(), keep = 1 - alpha * delta_.sigmoid();
  const Tensor lag = at::arange(x.size(1), x.options().requires_grad(false)).reshape({-1, 1, 1});
  const Tensor kernel = (eta_ * alpha * beta_ * keep.pow(lag)).sum(2);
  return reverse ? convolve_reference(kernel, x.flip(1)).flip(1) : convolve_reference(kernel, x);
}

// The attention as a full matrix, masked to the blocks on its diagonal.
Tensor MegaMixer::reference(const Tensor& x) {
  Tensor average = average_->reference(x, false);
  if (average_back_) average = average + average_back_->reference(x, true);
  const Tensor t = at::arange(x.size(1), x.options().dtype(at::kLong).requires_grad(false));
  const auto [q, k] = queries_and_keys(average, t.unsqueeze(0));
  Tensor scores = at::matmul(q.squeeze(2), k.squeeze(2).transpose(1, 2));
  const Tensor chunk = at::floor_divide(t, settings_.chunk);
  Tensor visible = chunk.unsqueeze(1) == chunk.unsqueeze(0);
  if (settings_.causal) visible = visible.tril();
  scores = scores.masked_fill(visible.logical_not(), -std::numeric_limits<double>::infinity());
  return output(x, average, at::matmul(at::softmax(scores, -1), values(x).squeeze(2)).unsqueeze(2));
}

}  // namespace cortado
