#include "cortado/nn/feature_map.h"

#include <algorithm>
#include <cmath>

#include "cortado/nn/initialization.h"
#include "cortado/nn/wide.h"
#include "cortado/primitives/common.h"

namespace cortado {
namespace {

bool one_of(const std::string& kind, std::initializer_list<const char*> kinds) {
  return std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
}

// 1, x/d^¼ and the products x_i x_j, i <= j, each pair once: half the state that all d² products would take.
Tensor taylor_features(const Tensor& x) {
  const int64_t d = x.size(-1);
  const double root = std::sqrt(static_cast<double>(d));
  const Tensor pairs = at::triu_indices(d, d, 0, x.options().dtype(at::kLong));
  const Tensor weights = (pairs[0] == pairs[1]).to(x.scalar_type()) * ((std::sqrt(0.5) - 1) / root) + 1 / root;
  const Tensor products = x.index_select(-1, pairs[0]) * x.index_select(-1, pairs[1]) * weights;
  return at::cat({at::ones_like(x.narrow(-1, 0, 1)), x / std::sqrt(root), products}, -1);
}

Tensor both_signs(const Tensor& y) { return at::cat({y, -y}, -1); }

}  // namespace

Tensor learned_features(const std::string& kind, const Tensor& y) {
  if (kind == "t2r") return at::relu(y);
  if (kind == "hedgehog") return at::softmax(both_signs(2 * y), -1);
  return at::cat({at::softmax(y, -1), at::softmax(-y, -1)}, -1);
}

Tensor orthogonal_features(int64_t rows, int64_t dim) {
  std::vector<Tensor> blocks;
  for (int64_t done = 0; done < rows; done += dim) {
    auto [q, r] = at::linalg_qr(at::randn({dim, dim}, at::kDouble));
    // LAPACK's QR prefers certain signs. Without this factor the rows are not uniform and the estimate is biased.
    const Tensor uniform = q * at::sign(at::diagonal(r)).unsqueeze(0);
    blocks.push_back(uniform.t().narrow(0, 0, std::min(dim, rows - done)));
  }
  const Tensor lengths = at::randn({rows, dim}, at::kDouble).norm(2, {1}, /*keepdim=*/true);
  return (at::cat(blocks) * lengths).to(at::kFloat);
}

FeatureMap::FeatureMap(std::string name, int64_t heads, int64_t head_dim, int64_t features)
    : Module("FeatureMap"), kind(std::move(name)), head_dim_(head_dim) {
  if (kind == "performer") {
    std::vector<Tensor> drawn;
    for (int64_t h = 0; h < heads; ++h) drawn.push_back(orthogonal_features(features, head_dim));
    register_buffer(weight, "weight", at::stack(drawn));
  } else if (kind == "t2r") {
    register_parameter(weight, "weight", at::empty({heads, features, head_dim}), Role::kMatrix);
    lecun_normal(weight, head_dim);
  } else if (learned(kind)) {  // the softmax maps start as the first `features` coordinates
    register_parameter(weight, "weight", at::eye(features, head_dim).repeat({heads, 1, 1}), Role::kMatrix);
  }
  if (one_of(kind, {"t2r", "hedgehog"})) register_parameter(bias, "bias", at::zeros({heads, features}), Role::kGain);
}

const std::vector<std::string>& FeatureMap::kinds() {
  static const std::vector<std::string> all = {"elu",     "relu", "taylor",       "t2r",      "hedgehog",
                                               "lolcats", "exp",  "hedgehog_exp", "performer"};
  return all;
}

bool FeatureMap::learned(const std::string& kind) {
  return one_of(kind, {"t2r", "hedgehog", "lolcats", "hedgehog_exp"});
}
bool FeatureMap::sized(const std::string& kind) { return learned(kind) || kind == "performer"; }
bool FeatureMap::in_logits(const std::string& kind) { return one_of(kind, {"exp", "hedgehog_exp", "performer"}); }

int64_t FeatureMap::size() const {
  if (kind == "taylor") return 1 + head_dim_ + head_dim_ * (head_dim_ + 1) / 2;
  if (!sized(kind)) return head_dim_;
  return weight.size(1) * (one_of(kind, {"hedgehog", "lolcats", "hedgehog_exp"}) ? 2 : 1);
}

// Returns Wx (+ b), [B,T,H,features].
Tensor FeatureMap::project(const Tensor& x) const {
  const Tensor y = at::einsum("bthd,hfd->bthf", {x, weight.to(x.scalar_type())});
  return bias.defined() ? y + bias.to(x.scalar_type()) : y;
}

Tensor FeatureMap::forward(const Tensor& given, bool query) const {
  const NoAutocast in_float32;
  Tensor x = widen(given);
  if (kind == "elu") return at::elu(x) + 1;
  if (kind == "relu") return at::relu(x);
  if (kind == "taylor") return taylor_features(x);
  if (one_of(kind, {"t2r", "hedgehog"})) return learned_features(kind, project(x));
  if (kind == "lolcats") return learned_features(kind, project(x)).clamp_min(kLeastFeature);
  if (kind == "exp") return x;
  if (kind == "hedgehog_exp") return both_signs(project(x));
  const Tensor scaled = x * std::pow(static_cast<double>(head_dim_), -0.25);
  const Tensor logits = project(scaled) - 0.5 * std::log(static_cast<double>(size()));
  return query ? logits : logits - 0.5 * scaled.square().sum(-1, /*keepdim=*/true);
}

}  // namespace cortado
