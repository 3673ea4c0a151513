// rwkv6: linear attention with data-dependent decays and a bonus for the current token (Finch).
#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/rwkv/shift.h"
#include "cortado/mechanisms/shared/heads.h"
#include "cortado/mechanisms/shared/part_scan.h"
#include "cortado/primitives/gated_scan/op.h"

namespace cortado {
namespace {

constexpr int64_t kMixes = 5;  // inputs of r, w, k, v and g, in this order

// State: "shift" [rows,1,D], "scan_state" [rows,H,K,V].
class Rwkv6Mixer : public Mixer {
 public:
  Rwkv6Mixer(JsonReader& settings, const MixerContext& context)
      : Mixer("rwkv6"),
        dim_(context.dim),
        key_dim_(settings.integer("key_dim", 1, 1 << 20, dim_)),
        value_dim_(settings.integer("value_dim", 1, 1 << 20, dim_)),
        heads_(read_heads(settings, context, key_dim_, "key_dim")) {
    const int64_t keys = key_dim_, values = value_dim_;
    read_heads(settings, context, values, "value_dim");
    mix_rank_ = settings.integer("mix_rank", 1, 1 << 20, 32);
    const int64_t decay_rank = settings.integer("decay_rank", 1, 1 << 20, 64);
    norm_eps_ = settings.number("norm_eps", 0.0, 1.0, 64e-5);
    register_mixes(context);
    const Depth depth(context);
    const Tensor place = ramp(keys);
    register_parameter(decay_, "decay", place.pow(0.7 + 1.3 * depth.ratio) * 5 - 6, Role::kDynamics);
    register_parameter(decay_down_, "decay_down", at::zeros({decay_rank, dim_}), Role::kMatrix);
    register_parameter(decay_up_, "decay_up", at::empty({keys, decay_rank}).uniform_(-0.01, 0.01), Role::kMatrix);
    const Tensor bonus = (1 - place) * depth.ratio + zigzag(keys) * 0.1;
    register_parameter(bonus_, "bonus", bonus.view({heads_, keys / heads_}), Role::kDynamics);
    r_ = register_module("r", std::make_shared<Linear>(dim_, keys));
    k_ = register_module("k", std::make_shared<Linear>(dim_, keys));
    v_ = register_module("v", std::make_shared<Linear>(dim_, values));
    g_ = register_module("g", std::make_shared<Linear>(dim_, values));
    register_parameter(norm_weight_, "norm_weight", at::ones({values}), Role::kGain);
    register_parameter(norm_bias_, "norm_bias", at::zeros({values}), Role::kGain);
    o_ = register_module("o", make_output_linear(values, dim_));
  }

  Tensor reference(const Tensor& x) override {
    const Operands in = operands(x, previous_reference(x));
    return output(std::get<0>(gated_scan_reference(in.r, in.k, in.v, in.g, "key", 1.0, bonus_)), in.gate);
  }

  double flops_per_token(int64_t) const override {
    const int64_t low_rank = mix_down_.numel() + mix_up_.numel() + decay_down_.numel() + decay_up_.numel();
    return weight_flops() + 2.0 * static_cast<double>(low_rank) + scan_flops(6);
  }

  Joining joining() const override { return {1}; }

 private:
  void declare(StateLayout& layout) const override {
    declare_shift(layout, dim_);
    layout.scan("scan_state", {heads_, key_dim_ / heads_, value_dim_ / heads_});
  }

  Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) override {
    const Operands in = operands(x, previous(x, batch, state));
    return output(scan_part({in.r, in.k, in.v, in.g, 1.0, bonus_}, batch, state), in.gate);
  }

  struct Operands {
    Tensor r, k, v, g;  // g: natural log of the decay
    Tensor gate;
  };

  void register_mixes(const MixerContext& context) {
    const Depth depth(context);
    const Tensor place = at::arange(dim_, at::kFloat) / static_cast<double>(dim_), share = place.pow(depth.rest);
    const Tensor half = 1 - place.pow(0.5 * depth.rest);
    register_parameter(mix_x_, "mix_x", 1 - share, Role::kDynamics);
    register_parameter(mix_, "mix", at::stack({half, 1 - share, 1 - share, 1 - share - 0.3 * depth.ratio, half}),
                       Role::kDynamics);
    register_parameter(mix_down_, "mix_down", at::zeros({kMixes * mix_rank_, dim_}), Role::kMatrix);
    register_parameter(mix_up_, "mix_up", at::empty({kMixes, mix_rank_, dim_}).uniform_(-0.01, 0.01), Role::kMatrix);
  }

  Operands operands(const Tensor& x, const Tensor& before) const {
    const Tensor change = before - x;
    const Tensor low = at::tanh(at::linear(x + change * mix_x_, mix_down_)).unflatten(-1, {kMixes, mix_rank_});
    const Tensor mix = at::einsum("btnr,nrd->nbtd", {low, mix_up_}) + mix_.unsqueeze(1).unsqueeze(1);
    const auto mixed = (x + change * mix).unbind(0);
    const Tensor rate = widen(at::linear(at::tanh(at::linear(mixed[1], decay_down_)), decay_up_)) + widen(decay_);
    return {split_heads(r_->forward(mixed[0]), heads_), split_heads(k_->forward(mixed[2]), heads_),
            split_heads(v_->forward(mixed[3]), heads_), split_heads(-rate.exp(), heads_),
            at::silu(g_->forward(mixed[4]))};
  }

  // Normalises each head (LayerNorm), with one scale and one shift per channel.
  Tensor output(const Tensor& o, const Tensor& gate) const {
    const Tensor normed = merge_heads(at::layer_norm(o, {o.size(-1)}, {}, {}, norm_eps_));
    return o_->forward((normed * norm_weight_ + norm_bias_) * gate);
  }

  int64_t dim_;
  int64_t key_dim_, value_dim_;  // summed over the heads
  int64_t heads_;
  int64_t mix_rank_;  // rank of the mixes' low-rank maps
  double norm_eps_;
  std::shared_ptr<Linear> r_, k_, v_, g_, o_;
  Tensor mix_x_, mix_;              // [D], [5,D] for r, w, k, v, g
  Tensor mix_down_, mix_up_;        // [5·rank,D], [5,rank,D]
  Tensor decay_, bonus_;            // [key_dim], [H,K]
  Tensor decay_down_, decay_up_;    // [rank,D], [key_dim,rank]
  Tensor norm_weight_, norm_bias_;  // [value_dim]
};

}  // namespace

extern const Mechanism kRwkv6 = {
    .name = "rwkv6",
    .family = "linear attention",
    .paper = "RWKV-6, Eagle and Finch (Peng et al. 2024) eq. 13-20",
    .equation = "o_t = (S_{t-1} + diag(u) k_t v_t')' r_t, S_t = diag(exp(-exp(d_t))) S_{t-1} + k_t v_t'",
    .state = "H K V + D, K = V = d",
    .primitives = {"gated_scan", "short_conv"},
    .make = construct<Rwkv6Mixer>,
};

}  // namespace cortado
