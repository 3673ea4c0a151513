#include "cortado/nn/experts.h"

#include "cortado/nn/wide.h"

namespace cortado {

Experts::Experts(const FeedForwardOptions& each, const ExpertChoice& choice) : TokenMap("Experts"), choice_(choice) {
  router_ = register_module("router", std::make_shared<Linear>(each.dim, choice.count));
  auto list = register_module("experts", std::make_shared<torch::nn::Module>("experts"));
  for (int64_t i = 0; i < choice.count; ++i) {
    experts_.push_back(std::make_shared<FeedForward>(each));
    list->register_module(std::to_string(i), experts_.back());
  }
  if (choice.shared == 0) return;
  FeedForwardOptions wide = each;
  wide.hidden = choice.shared;
  shared_ = register_module("shared", std::make_shared<FeedForward>(wide));
  if (choice.shared_gate) shared_gate_ = register_module("shared_gate", std::make_shared<Linear>(each.dim, 1));
}

Tensor Experts::forward(const Tensor& x) const {
  const Tensor tokens = x.reshape({-1, x.size(-1)});
  auto [weights, chosen] = at::softmax(widen(router_->forward(tokens)), -1).topk(choice_.per_token, -1);
  // For one expert the normalised weight is 1. Its gradient would be a rounding error of 0, which an optimiser that
  // divides by the gradient's size would turn into full-size steps.
  if (choice_.normalized) weights = choice_.per_token == 1 ? weights * 0 + 1 : weights / weights.sum(-1, true);
  Tensor y = shared_ ? shared_->forward(tokens) : at::zeros_like(tokens);
  if (shared_gate_) y = at::sigmoid(shared_gate_->forward(tokens)) * y;
  // Pairs of a token and one of its experts, sorted by expert, so that each expert's rows are contiguous.
  const Tensor order = std::get<1>(chosen.flatten().sort(/*stable=*/true, 0, false));
  const Tensor counts = at::bincount(chosen.flatten(), {}, choice_.count).cpu();
  const Tensor of_token = order.div(choice_.per_token, "floor");
  const Tensor weight = weights.to(x.scalar_type()).flatten().index_select(0, order).unsqueeze(1);
  std::vector<Tensor> parts;
  int64_t begin = 0;
  for (int64_t i = 0; i < choice_.count; ++i) {
    const int64_t count = counts.data_ptr<int64_t>()[i];
    if (count == 0) continue;
    const Tensor rows = tokens.index_select(0, of_token.narrow(0, begin, count));
    parts.push_back(experts_[i]->forward(rows) * weight.narrow(0, begin, count));
    begin += count;
  }
  if (parts.empty()) return y.view(x.sizes());
  const Tensor routed = at::cat(parts);
  // Under autocast a shared expert's output has 16 bits, and the weighted sum does not.
  const auto type = at::promote_types(y.scalar_type(), routed.scalar_type());
  return y.to(type).index_add(0, of_token, routed.to(type)).view(x.sizes());
}

double Experts::flops_per_token() const {
  const double router = 2.0 * static_cast<double>(router_->weight.numel());
  const double each = experts_.front()->flops_per_token() * static_cast<double>(choice_.per_token);
  const double gate = shared_gate_ ? 2.0 * static_cast<double>(shared_gate_->weight.numel()) : 0.0;
  return router + each + (shared_ ? shared_->flops_per_token() + gate : 0.0);
}

}  // namespace cortado
