// rwkv4_channel_mix and rwkv7_channel_mix: the feed-forwards of RWKV-4 (and 5, 6) and of RWKV-7. They use the previous
// token, so they have a state and are a layer's mixer.
#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/rwkv/fused.h"
#include "cortado/mechanisms/rwkv/op.h"
#include "cortado/mechanisms/rwkv/shift.h"
#include "cortado/mechanisms/shared/heads.h"

namespace cortado {
namespace {

// State: "shift" [rows,1,D].
class ChannelMixer : public Mixer {
 public:
  ChannelMixer(const char* name, JsonReader& settings, const MixerContext& context)
      : Mixer(name), dim_(context.dim), hidden_(settings.integer("hidden", 1, 1 << 20, 4 * dim_)) {}

  Tensor reference(const Tensor& x) override { return output(x, previous_reference(x)); }

  Joining joining() const override { return {1, 0}; }

 protected:
  // Maps each token and the previous one.
  virtual Tensor output(const Tensor& x, const Tensor& before) const = 0;

  int64_t dim_, hidden_;

  Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) override {
    return output(x, previous(x, batch, state));
  }

 private:
  void declare(StateLayout& layout) const override { declare_shift(layout, dim_); }
};

class Rwkv4ChannelMixer : public ChannelMixer {
 public:
  Rwkv4ChannelMixer(JsonReader& settings, const MixerContext& context)
      : ChannelMixer("rwkv4_channel_mix", settings, context) {
    const Tensor share = (at::arange(dim_, at::kFloat) / static_cast<double>(dim_)).pow(Depth(context).rest);
    register_parameter(mix_k_, "mix_k", share.clone(), Role::kDynamics);
    register_parameter(mix_r_, "mix_r", share.clone(), Role::kDynamics);
    k_ = register_module("k", std::make_shared<Linear>(dim_, hidden_));
    r_ = register_module("r", std::make_shared<Linear>(dim_, dim_));
    v_ = register_module("v", make_output_linear(hidden_, dim_));
  }

  double flops_per_token(int64_t) const override {
    return weight_flops() + 6.0 * static_cast<double>(dim_);  // two mixes of the shift
  }

 private:
  Tensor output(const Tensor& x, const Tensor& before) const override {
    const auto mixed = [&](const Tensor& mix) { return before + mix * (x - before); };
    return at::sigmoid(r_->forward(mixed(mix_r_))) * v_->forward(k_->forward(mixed(mix_k_)).relu().square());
  }

  std::shared_ptr<Linear> k_, r_, v_;
  Tensor mix_k_, mix_r_;  // [D]
};

class Rwkv7ChannelMixer : public ChannelMixer {
 public:
  Rwkv7ChannelMixer(JsonReader& settings, const MixerContext& context)
      : ChannelMixer("rwkv7_channel_mix", settings, context) {
    const Tensor place = at::arange(dim_, at::kFloat) / static_cast<double>(dim_);
    register_parameter(mix_k_, "mix_k", 1 - place.pow(std::pow(Depth(context).rest, 4)), Role::kDynamics);
    k_ = register_module("k", std::make_shared<Linear>(dim_, hidden_));
    v_ = register_module("v", make_output_linear(hidden_, dim_));
  }

  double flops_per_token(int64_t) const override { return weight_flops() + 3.0 * static_cast<double>(dim_); }

 private:
  Tensor output(const Tensor& x, const Tensor& before) const override {
    return v_->forward(k_->forward(x + mix_k_ * (before - x)).relu().square());
  }

  Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) override {
    return rwkv7::compute(
        "rwkv7_channel_mix", x, batch,
        [&] { return v_->forward(rwkv7::squared_relu(k_->forward(rwkv7::shifted(x, batch, state, {mix_k_})[0]))); },
        [&] { return ChannelMixer::mix(x, batch, state); });
  }

  std::shared_ptr<Linear> k_, v_;
  Tensor mix_k_;  // [D]: the share of the previous token
};

}  // namespace

extern const Mechanism kRwkv4ChannelMix = {
    .name = "rwkv4_channel_mix",
    .family = "recurrence",
    .paper = "RWKV (Peng et al. 2023), channel mixing",
    .equation = "o_t = sigmoid(r_t) W_v relu(k_t)^2, with r and k of x_t mixed with x_{t-1}",
    .state = "D",
    .primitives = {"short_conv"},
    .make = construct<Rwkv4ChannelMixer>,
};

extern const Mechanism kRwkv7ChannelMix = {
    .name = "rwkv7_channel_mix",
    .family = "recurrence",
    .paper = "RWKV-7, Goose (Peng et al. 2025), channel mixing",
    .equation = "o_t = W_v relu(k_t)^2, with k of x_t mixed with x_{t-1}",
    .state = "D",
    .primitives = {"short_conv"},
    .make = construct<Rwkv7ChannelMixer>,
};

}  // namespace cortado
