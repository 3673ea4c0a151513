// perceiver: a few latents read the sequence, think about it, and are read by the tokens. An encoder.
#pragma once

#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/shared/heads.h"
#include "cortado/nn/feed_forward.h"
#include "cortado/nn/norms.h"

namespace cortado {

extern const Mechanism kPerceiver;

// A pre-norm transformer block over latents, z [N,L,D] -> the same shape.
class LatentBlock : public torch::nn::Module {
 public:
  LatentBlock(int64_t dim, int64_t heads);
  Tensor forward(const Tensor& z) const;
  double flops(int64_t latents) const;  // of one latent

 private:
  int64_t heads_, dim_;
  std::shared_ptr<RmsNorm> norm_, feed_norm_;
  std::shared_ptr<Linear> q_, k_, v_, o_;
  std::shared_ptr<FeedForward> feed_;
};

// No state: it has no causal form.
class PerceiverMixer : public Mixer {
 public:
  PerceiverMixer(int64_t dim, int64_t heads, int64_t latents, int64_t blocks);

  Tensor reference(const Tensor& x) override;
  double flops_per_token(int64_t tokens) const override;

 private:
  Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) override;

  int64_t heads_, count_, dim_;
  Tensor latents_;                       // Q̂ [L, D]
  std::shared_ptr<Linear> k_, v_, mix_;  // encoding: keys and values of tokens, and the heads' output
  std::vector<std::shared_ptr<LatentBlock>> blocks_;
  std::shared_ptr<Linear> q_, k_latent_, v_latent_, o_;  // decoding: queries of tokens, keys and values of latents
};

}  // namespace cortado
