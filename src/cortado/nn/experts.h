// A mixture of experts in place of a feed-forward: many SwiGLUs or mlps, of which each token uses a few.
#pragma once

#include <utility>
#include <vector>

#include "cortado/nn/feed_forward.h"

namespace cortado {

enum class RouterScores { kSoftmax, kSigmoid };

struct ExpertChoice {
  int64_t count = 8;        // E
  int64_t per_token = 2;    // k, at most E
  bool normalized = true;   // the k weights are divided by their sum
  int64_t shared = 0;       // width of a shared expert that every token uses; 0: none
  bool shared_gate = true;  // the shared expert's output is multiplied by a gate
  bool gated = true;        // an expert is a SwiGLU; false: an mlp
  RouterScores scores = RouterScores::kSoftmax;
  bool choice_bias = false;      // numbers that are added to the scores where experts are chosen, not to their weights
  int64_t groups = 1;            // G: the experts lie in groups of equal size, ...
  int64_t groups_per_token = 1;  // ... of which so many are open to a token
  double scale = 1;              // factor of the k weights
  bool router_bias = false;
  bool scale_input = false;             // the weights multiply the experts' inputs, not their outputs (Llama 4)
  std::optional<GateLimit> limit = {};  // of every expert's gate (gpt-oss)
  int64_t latent = 0;                   // channels of a map of x that the experts see instead of x; 0: they see x

  bool operator==(const ExpertChoice&) const = default;
};

// x [..., D]. With p = softmax(W_r x) or σ(W_r x) over E experts (in float32 at least) and the k largest p_i + c_i,
// y = scale Σ p_i expert_i(x). With `normalized` the weights are divided by their sum (for k = 1 the weight is 1, and
// the router's gradient is 0). With groups the k experts come from those groups whose two best experts have the largest
// sums (DeepSeek-V3). c is trained by no gradient: what balances the load sets it. With `latent` the experts map
// W_in x, and W_out their sum (Nemotron-3). With `scale_input` y = scale Σ expert_i(p_i x). A shared expert adds σ(w_s x) shared(x), as in Qwen3-Next, or without
// `shared_gate` shared(x). No load-balancing term is added to the loss. Parameters: "router.weight" [E, D],
// "router.bias" and "choice_bias" [E], "experts.I.{gate,up,down}.weight", "shared.{gate,up,down}.weight", "shared_gate.weight" [1, D],
// "latent_in.weight", "latent_out.weight".
class Experts : public TokenMap {
 public:
  // `each`: an expert's sizes, its activation and whether it has biases.
  Experts(const FeedForwardOptions& each, const ExpertChoice& choice);
  Tensor forward(const Tensor& x) const override;
  double flops_per_token() const override;

 private:
  struct Route {
    Tensor weights, experts;  // [N, k]
  };
  Route route(const Tensor& tokens) const;
  // Excludes the experts of groups that are not open to a token. `ranks` [N, E].
  Tensor within_best_groups(const Tensor& ranks) const;
  // Adds Σ weight · expert(token) to `sum` [N, ...].
  Tensor add_routed(const Tensor& sum, const Tensor& tokens, const Route& route) const;

  ExpertChoice choice_;
  std::shared_ptr<Linear> router_, shared_gate_, latent_in_, latent_out_;
  Tensor choice_bias_;  // undefined: none
  std::vector<std::shared_ptr<FeedForward>> experts_;
  std::shared_ptr<FeedForward> shared_;
};

}  // namespace cortado
