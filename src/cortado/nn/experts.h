// A mixture of experts in place of a feed-forward: many SwiGLUs, of which each token uses a few.
#pragma once

#include <vector>

#include "cortado/nn/feed_forward.h"

namespace cortado {

struct ExpertChoice {
  int64_t count = 8;        // E
  int64_t per_token = 2;    // k, at most E
  bool normalized = true;   // the k weights are divided by their sum
  int64_t shared = 0;       // width of a shared expert that every token uses; 0: none
  bool shared_gate = true;  // the shared expert's output is multiplied by a gate
};

// x [..., D]. With p = softmax(W_r x) over E experts (in float32 at least) and the k largest p_i, y = Σ p_i
// expert_i(x). With `normalized` the weights are divided by their sum (for k = 1 the weight is 1, and the router's
// gradient is 0). A shared expert adds σ(w_s x) shared(x), as in Qwen3-Next, or without `shared_gate` shared(x). No load-balancing term is added to the
// loss. Parameters: "router.weight" [E, D], "experts.I.{gate,up,down}.weight", "shared.{gate,up,down}.weight",
// "shared_gate.weight" [1, D].
class Experts : public TokenMap {
 public:
  // `each`: an expert's sizes and whether it has biases.
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
