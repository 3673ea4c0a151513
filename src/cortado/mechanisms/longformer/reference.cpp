#include <cmath>

#include "cortado/mechanisms/longformer/mixer.h"

namespace cortado {
namespace {

// softmax(scale q k' + mask) v over the full matrix; visible bool [T,T].
Tensor masked_softmax(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& visible,
                      const AttentionSettings& settings) {
  const int64_t group = q.size(2) / k.size(2);
  const Tensor keys = k.repeat_interleave(group, 2), values = v.repeat_interleave(group, 2);
  const double scale = settings.scale.value_or(1 / std::sqrt(static_cast<double>(q.size(3))));
  Tensor scores = at::einsum("bthk,bshk->bhts", {q, keys}) * scale;
  if (settings.softcap) scores = *settings.softcap * (scores / *settings.softcap).tanh();
  scores = scores.masked_fill(visible.logical_not(), -std::numeric_limits<double>::infinity());
  return at::einsum("bhts,bshv->bthv", {at::softmax(scores, -1), values});
}

}  // namespace

Tensor LongformerMixer::reference(const Tensor& x) {
  const Tensor t = at::arange(x.size(1), x.options().dtype(at::kLong).requires_grad(false));
  const Tensor distance = t.unsqueeze(1) - t.unsqueeze(0), global = (t < globals_).unsqueeze(0);
  Tensor visible = (distance.abs() < *settings_.window).logical_or(global);
  if (settings_.causal) visible = visible.logical_and(distance >= 0);
  const Projected p = project(x, t.unsqueeze(0));
  Tensor mixed = masked_softmax(p.q, p.k, p.v, visible, settings_);
  if (q_global_) {
    const Projected g = project(x, t.unsqueeze(0), *q_global_, *k_global_, *v_global_);
    const Tensor whole = masked_softmax(g.q, g.k, g.v, at::ones_like(visible), settings_);
    mixed = at::where((t < globals_).unsqueeze(1).unsqueeze(2), whole, mixed);
  }
  return output(mixed);
}

}  // namespace cortado
