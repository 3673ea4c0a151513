#include "cortado/nn/experts.h"

#include <limits>

#include "cortado/nn/wide.h"

namespace cortado {

Experts::Experts(const FeedForwardOptions& each, const ExpertChoice& choice) : TokenMap("Experts"), choice_(choice) {
  router_ = register_module("router", std::make_shared<Linear>(each.dim, choice.count, choice.router_bias));
  if (choice.choice_bias) {
    register_parameter(choice_bias_, "choice_bias", at::zeros({choice.count}), Role::kDynamics);
    choice_bias_.requires_grad_(false);
  }
  FeedForwardOptions inner = each;
  inner.limit = choice.limit;
  if (choice.latent > 0) {
    inner.dim = choice.latent;
    latent_in_ = register_module("latent_in", std::make_shared<Linear>(each.dim, choice.latent, each.bias));
    latent_out_ = register_module("latent_out", make_output_linear(choice.latent, each.dim, each.bias));
  }
  auto list = register_module("experts", std::make_shared<torch::nn::Module>("experts"));
  for (int64_t i = 0; i < choice.count; ++i) {
    experts_.push_back(std::make_shared<FeedForward>(inner));
    list->register_module(std::to_string(i), experts_.back());
  }
  if (choice.shared == 0) return;
  FeedForwardOptions wide = each;
  wide.hidden = choice.shared;
  shared_ = register_module("shared", std::make_shared<FeedForward>(wide));
  if (choice.shared_gate) shared_gate_ = register_module("shared_gate", std::make_shared<Linear>(each.dim, 1));
}

Tensor Experts::within_best_groups(const Tensor& ranks) const {
  if (choice_.groups == 1) return ranks;
  const Tensor grouped = ranks.view({ranks.size(0), choice_.groups, choice_.count / choice_.groups});
  const Tensor best = std::get<0>(grouped.topk(2, -1)).sum(-1);
  const Tensor open = std::get<1>(best.topk(choice_.groups_per_token, -1));
  const Tensor closed = at::ones_like(best, best.options().dtype(at::kBool)).scatter(1, open, false);
  return grouped.masked_fill(closed.unsqueeze(-1), -std::numeric_limits<double>::infinity()).view_as(ranks);
}

Experts::Route Experts::route(const Tensor& tokens) const {
  const Tensor logits = widen(router_->forward(tokens));
  const Tensor scores = choice_.scores == RouterScores::kSigmoid ? at::sigmoid(logits) : at::softmax(logits, -1);
  const Tensor ranks = choice_bias_.defined() ? scores + choice_bias_.to(scores.scalar_type()) : scores;
  const Tensor chosen = std::get<1>(within_best_groups(ranks).topk(choice_.per_token, -1));
  Tensor weights = scores.gather(-1, chosen);
  // For one expert the normalised weight is 1. Its gradient would be a rounding error of 0, which an optimiser that
  // divides by the gradient's size would turn into full-size steps. Sigmoids may all be 0.
  constexpr double kNotZero = 1e-20;
  if (choice_.normalized) {
    weights = choice_.per_token == 1 ? weights * 0 + 1 : weights / (weights.sum(-1, true) + kNotZero);
  }
  return {choice_.scale == 1 ? weights : weights * choice_.scale, chosen};
}

Tensor Experts::add_routed(const Tensor& sum, const Tensor& tokens, const Route& route) const {
  // Pairs of a token and one of its experts, sorted by expert, so that each expert's rows are contiguous.
  const Tensor chosen = route.experts.flatten();
  const Tensor order = std::get<1>(chosen.sort(/*stable=*/true, 0, false));
  const Tensor counts = at::bincount(chosen, {}, choice_.count).cpu();
  const Tensor of_token = order.div(choice_.per_token, "floor");
  const Tensor weight = route.weights.to(tokens.scalar_type()).flatten().index_select(0, order).unsqueeze(1);
  std::vector<Tensor> parts;
  int64_t begin = 0;
  for (int64_t i = 0; i < choice_.count; ++i) {
    const int64_t count = counts.data_ptr<int64_t>()[i];
    if (count == 0) continue;
    const Tensor rows = tokens.index_select(0, of_token.narrow(0, begin, count));
    const Tensor factor = weight.narrow(0, begin, count);
    parts.push_back(choice_.scale_input ? experts_[i]->forward(rows * factor) : experts_[i]->forward(rows) * factor);
    begin += count;
  }
  if (parts.empty()) return sum;
  const Tensor routed = at::cat(parts);
  // Under autocast a shared expert's output has 16 bits, and the weighted sum does not.
  const auto type = at::promote_types(sum.scalar_type(), routed.scalar_type());
  return sum.to(type).index_add(0, of_token, routed.to(type));
}

Tensor Experts::forward(const Tensor& x) const {
  const Tensor tokens = x.reshape({-1, x.size(-1)});
  const Route chosen = route(tokens);
  Tensor y = shared_ ? shared_->forward(tokens) : at::zeros_like(tokens);
  if (shared_gate_) y = at::sigmoid(shared_gate_->forward(tokens)) * y;
  if (!latent_in_) return add_routed(y, tokens, chosen).view(x.sizes());
  const Tensor latent = latent_in_->forward(tokens);
  return (y + latent_out_->forward(add_routed(at::zeros_like(latent), latent, chosen))).view(x.sizes());
}

double Experts::flops_per_token() const {
  double flops = experts_.front()->flops_per_token() * static_cast<double>(choice_.per_token);
  for (const auto& map : {router_, shared_gate_, latent_in_, latent_out_}) {
    if (map) flops += 2.0 * static_cast<double>(map->weight.numel());
  }
  return flops + (shared_ ? shared_->flops_per_token() : 0.0);
}

}  // namespace cortado
