// A mixture of experts in a feed-forward's place: many SwiGLUs, of which each token goes through a few.
#pragma once

#include <vector>

#include "cortado/nn/feed_forward.h"

namespace cortado {

struct ExpertChoice {
  int64_t count = 8;       // E
  int64_t per_token = 2;   // k, at most E
  bool normalized = true;  // the k weights are divided by their sum
  int64_t shared = 0;      // width of one more, which every token goes through; 0: none
};

// x [..., D]: p = softmax(W_r x) over E experts (float32 at least), the k largest p_i: y = Σ p_i expert_i(x), with
// `normalized` divided by their sum (so of one expert 1, and the router's gradient is 0); with a shared one + σ(w_s x)
// shared(x). Qwen3-Next's. Nothing is added to the loss for a balance between the experts.
// Parameters "router.weight" [E, D], "experts.I.{gate,up,down}.weight", "shared.{gate,up,down}.weight",
// "shared_gate.weight" [1, D].
class Experts : public TokenMap {
 public:
  // `each`: sizes of an expert, and its bias.
  Experts(const FeedForwardOptions& each, const ExpertChoice& choice);
  Tensor forward(const Tensor& x) const override;
  double flops_per_token() const override;

 private:
  ExpertChoice choice_;
  std::shared_ptr<Linear> router_, shared_gate_;
  std::vector<std::shared_ptr<FeedForward>> experts_;
  std::shared_ptr<FeedForward> shared_;
};

}  // namespace cortado
