// perceiver: a few latents attend to the sequence, pass transformer blocks, and are attended to by the tokens. An
// encoder.
#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/shared/heads.h"
#include "cortado/mechanisms/shared/latents.h"
#include "cortado/nn/feed_forward.h"
#include "cortado/nn/norm/norms.h"

namespace cortado {
namespace {

// A pre-norm transformer block over latents: maps z [N,L,D] to [N,L,D].
class LatentBlock : public Module {
 public:
  LatentBlock(int64_t dim, int64_t heads) : Module("LatentBlock"), heads_(heads), dim_(dim) {
    norm_ = register_module("norm", std::make_shared<RmsNorm>(dim));
    q_ = register_module("q", std::make_shared<Linear>(dim, dim));
    k_ = register_module("k", std::make_shared<Linear>(dim, dim));
    v_ = register_module("v", std::make_shared<Linear>(dim, dim));
    o_ = register_module("o", std::make_shared<Linear>(dim, dim));
    feed_norm_ = register_module("feed_norm", std::make_shared<RmsNorm>(dim));
    feed_ = register_module("feed", std::make_shared<FeedForward>(FeedForwardOptions{.dim = dim, .hidden = 4 * dim}));
  }

  Tensor forward(const Tensor& z) const {
    const Tensor y = norm_->forward(z);
    const Tensor q = split_heads(q_->forward(y), heads_), k = split_heads(k_->forward(y), heads_);
    const Tensor mixed = attention_reference(q, k, split_heads(v_->forward(y), heads_));  // L x L, which is small
    const Tensor middle = z + o_->forward(merge_heads(mixed));
    return middle + feed_->forward(feed_norm_->forward(middle));
  }

  // Operations per latent.
  double flops(int64_t latents) const {
    return linear_flops({q_.get(), k_.get(), v_.get(), o_.get()}) + feed_->flops_per_token() +
           4.0 * static_cast<double>(latents * dim_);
  }

 private:
  int64_t heads_, dim_;
  std::shared_ptr<RmsNorm> norm_, feed_norm_;
  std::shared_ptr<Linear> q_, k_, v_, o_;
  std::shared_ptr<FeedForward> feed_;
};

// It has no causal form and so no state.
class PerceiverMixer : public Mixer {
 public:
  PerceiverMixer(JsonReader& settings, const MixerContext& context)
      : Mixer("perceiver"),
        heads_(read_heads(settings, context, context.dim, "dim")),
        count_(settings.integer("latents", 1, 65536, 64)),
        dim_(context.dim) {
    const int64_t dim = dim_, blocks = settings.integer("blocks", 0, 64, 1);
    register_parameter(latents_, "latents", at::empty({count_, dim}), Role::kEmbedding);
    draw_normal(latents_, 1.0);
    k_ = register_module("k", std::make_shared<Linear>(dim, dim));
    v_ = register_module("v", std::make_shared<Linear>(dim, dim));
    mix_ = register_module("mix", std::make_shared<Linear>(dim, dim));
    for (int64_t i = 0; i < blocks; ++i) {
      blocks_.push_back(register_module(concat("blocks", i), std::make_shared<LatentBlock>(dim, heads_)));
    }
    q_ = register_module("q", std::make_shared<Linear>(dim, dim));
    k_latent_ = register_module("k_latent", std::make_shared<Linear>(dim, dim));
    v_latent_ = register_module("v_latent", std::make_shared<Linear>(dim, dim));
    o_ = register_module("o", make_output_linear(dim, dim));
  }

  // Eq. 29 and its counterpart for the tokens, as full attentions.
  Tensor reference(const Tensor& x) override {
    const Tensor q = split_heads(latents_, heads_).unsqueeze(0).expand({x.size(0), -1, -1, -1});
    const Tensor z = think(merge_heads(attention_reference(q, heads(*k_, x), heads(*v_, x))));
    return o_->forward(merge_heads(attention_reference(heads(*q_, x), heads(*k_latent_, z), heads(*v_latent_, z))));
  }

  // The latents' own work is divided by the tokens of the sequence.
  double flops_per_token(int64_t tokens) const override {
    double latent = linear_flops({mix_.get(), k_latent_.get(), v_latent_.get()});
    for (const auto& block : blocks_) latent += block->flops(count_);
    return linear_flops({q_.get(), k_.get(), v_.get(), o_.get()}) + 8.0 * static_cast<double>(count_ * dim_) +
           latent * static_cast<double>(count_) / static_cast<double>(std::max<int64_t>(1, tokens));
  }

 private:
  Tensor mix(const Tensor& x, const Batch& batch, SequenceState*) override {
    const Tensor k = heads(*k_, x), v = heads(*v_, x);
    const Tensor read = latents_read(latent_heads(latents_, heads_), k, v, batch);
    const Tensor z = think(merge_latent_heads(read.to(x.scalar_type())));
    return o_->forward(merge_heads(tokens_read(heads(*q_, x), latent_heads(k_latent_->forward(z), heads_),
                                               latent_heads(v_latent_->forward(z), heads_), batch)));
  }

  Tensor heads(const Linear& map, const Tensor& x) const { return split_heads(map.forward(x), heads_); }

  // Maps what the latents have read, [N,L,D], through the blocks.
  Tensor think(const Tensor& read) const {
    Tensor z = mix_->forward(read);
    for (const auto& block : blocks_) z = block->forward(z);
    return z;
  }

  int64_t heads_, count_, dim_;
  Tensor latents_;                       // Q̂ [L, D]
  std::shared_ptr<Linear> k_, v_, mix_;  // encoder: keys and values of the tokens, projection of the heads' output
  std::vector<std::shared_ptr<LatentBlock>> blocks_;
  // decoder: queries of the tokens, keys and values of the latents
  std::shared_ptr<Linear> q_, k_latent_, v_latent_, o_;
};

}  // namespace

extern const Mechanism kPerceiver = {
    .name = "perceiver",
    .family = "linear attention",
    .paper = "Perceiver (Jaegle et al. 2021); Latte (2024) eq. 29",
    .equation = "Z = blocks(softmax(Q K' / sqrt d) V), o = softmax(W_q x (W_k Z)' / sqrt d) W_v Z",
    .state = "none (whole sequences)",
    .primitives = {"gated_scan", "running_max"},
    .causal = false,
    .bidirectional = true,
    .make = construct<PerceiverMixer>,
};

}  // namespace cortado
