#include "cortado/models/block.h"

#include "cortado/base/error.h"
#include "cortado/mechanisms/registry.h"
#include "cortado/nn/dropout.h"

namespace cortado {

namespace {

std::shared_ptr<Mixer> make_layer_mixer(const ModelConfig& config, int64_t layer) {
  MixerContext context;
  context.dim = config.dim;
  context.heads = config.heads;
  context.layer = layer;
  context.layers = static_cast<int64_t>(config.layers.size());
  context.causal = config.causal;
  context.rotary = config.positions == PositionKind::kRotary;
  context.rope_theta = config.rope_theta;
  context.rope_scaling = config.rope_scaling;
  return make_mixer(config.layers[layer], context, concat("layers[", layer, "]"));
}

std::shared_ptr<FeedForward> make_feed_forward(const ModelConfig& config) {
  FeedForwardOptions options;
  options.dim = config.dim;
  options.hidden = config.feed_forward_dim;
  options.gated = config.feed_forward != FeedForwardKind::kMlp;
  options.activation = config.feed_forward_activation;
  options.bias = config.feed_forward_bias;
  return std::make_shared<FeedForward>(options);
}

}  // namespace

std::shared_ptr<Norm> make_norm(const ModelConfig& config) {
  if (config.norm == NormKind::kRms) return std::make_shared<RmsNorm>(config.dim, config.norm_eps);
  return std::make_shared<LayerNorm>(config.dim, config.norm_eps, config.norm_bias);
}

Block::Block(const ModelConfig& config, int64_t layer) : torch::nn::Module("Block"), dropout_(config.dropout) {
  mixer_norm_ = register_module("mixer_norm", make_norm(config));
  mixer_ = register_module("mixer", make_layer_mixer(config, layer));
  if (config.post_norm) mixer_post_norm_ = register_module("mixer_post_norm", make_norm(config));
  if (config.feed_forward == FeedForwardKind::kNone) return;
  feed_forward_norm_ = register_module("feed_forward_norm", make_norm(config));
  feed_forward_ = register_module("feed_forward", make_feed_forward(config));
  if (config.post_norm) feed_forward_post_norm_ = register_module("feed_forward_post_norm", make_norm(config));
}

Tensor Block::forward(const Tensor& x, const Batch& batch, SequenceState* state) const {
  return forward_with(x, batch, [&](const Tensor& y) { return mixer_->forward(y, batch, state); });
}

Tensor Block::forward_with(const Tensor& x, const Batch& batch, const Mix& mix) const {
  const auto add = [&](const Tensor& stream, Tensor branch, const std::shared_ptr<Norm>& post) {
    if (post) branch = post->forward(branch);
    return stream + drop(branch, dropout_, batch.training);
  };
  const Tensor branch = mix(mixer_norm_->forward(x));
  if (!branch.defined()) return {};
  const Tensor mixed = add(x, branch, mixer_post_norm_);
  if (!feed_forward_) return mixed;
  return add(mixed, feed_forward_->forward(feed_forward_norm_->forward(mixed)), feed_forward_post_norm_);
}

double Block::flops_per_token(int64_t depth) const {
  return mixer_->flops_per_token(depth) + (feed_forward_ ? feed_forward_->flops_per_token() : 0.0);
}

}  // namespace cortado
