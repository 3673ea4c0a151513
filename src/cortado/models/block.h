// A residual block: a mixer, then a feed-forward, each on the normalised stream.
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <string>

#include "cortado/mechanisms/mixer.h"
#include "cortado/models/config.h"
#include "cortado/nn/batch.h"
#include "cortado/nn/feed_forward.h"
#include "cortado/nn/norms.h"
#include "cortado/nn/state.h"

namespace cortado {

std::shared_ptr<Norm> make_norm(const ModelConfig& config);

// x += drop(mixer(norm x)); x += drop(feed_forward(norm x)). With post_norm each branch is normalised once more before
// it is added. Without a feed-forward the second line is absent.
class Block : public torch::nn::Module {
 public:
  // `layer`: this block's number, from 0.
  Block(const ModelConfig& config, int64_t layer);

  // x [B, T, D] -> the same; state as in Mixer::forward.
  Tensor forward(const Tensor& x, const Batch& batch, SequenceState* state) const;

  // The same with something else in the mixer's place: `mix` gets the normalised x. Where it returns nothing (an
  // undefined tensor), so does this.
  using Mix = std::function<Tensor(const Tensor& x)>;
  Tensor forward_with(const Tensor& x, const Batch& batch, const Mix& mix) const;

  const std::shared_ptr<Mixer>& mixer() const { return mixer_; }
  double flops_per_token(int64_t depth) const;

 private:
  std::shared_ptr<Norm> mixer_norm_, mixer_post_norm_;
  std::shared_ptr<Mixer> mixer_;
  std::shared_ptr<Norm> feed_forward_norm_, feed_forward_post_norm_;
  std::shared_ptr<FeedForward> feed_forward_;
  double dropout_;
};

}  // namespace cortado
