#include <numbers>

#include "cortado/mechanisms/blurry_window/op.h"

namespace cortado {

Tensor blurry_window_reference(const Tensor& q, const Tensor& k, const Tensor& v, const BlurrySizes& sizes, bool decay,
                               double scale) {
  const int64_t slots = sizes.slots, modes = (slots - 1) / 2;
  const double resolution = static_cast<double>(sizes.period) / static_cast<double>(slots);
  const double omega = 2 * std::numbers::pi / static_cast<double>(sizes.period);
  const Tensor delay = at::arange(slots, at::kDouble) * resolution, mode = at::arange(1, modes + 1, at::kDouble);
  Tensor keys = at::zeros({1}, k.options()), values = keys;  // [B,H,N,K], [B,H,N,V]
  std::vector<Tensor> o;
  for (int64_t t = 0; t < q.size(1); ++t) {
    const Tensor x = static_cast<double>(t) - delay;
    const Tensor waves = (x.unsqueeze(1) * mode * omega).cos().sum(1);
    const Tensor w = ((1 + 2 * waves) / static_cast<double>(slots)).to(k.options()).unsqueeze(1);  // [N,1]
    const Tensor keep = decay ? 1 - w : at::ones_like(w);
    keys = keep * keys + w * k.select(1, t).unsqueeze(2);
    values = keep * values + w * v.select(1, t).unsqueeze(2);
    const Tensor scores = at::matmul(keys, q.select(1, t).unsqueeze(3)) * scale;  // [B,H,N,1]
    const Tensor hidden = (delay > static_cast<double>(t) + 1e-9).to(k.device()).unsqueeze(1);
    o.push_back((at::softmax(scores.masked_fill(hidden, -kInfinity), 2) * values).sum(2));
  }
  return o.empty() ? v : at::stack(o, 1);
}

}  // namespace cortado
