// rwkv7: a state that is corrected per channel, with data-dependent decays (Goose).
#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/rwkv/fused.h"
#include "cortado/mechanisms/rwkv/op.h"
#include "cortado/mechanisms/rwkv/shift.h"
#include "cortado/mechanisms/shared/heads.h"
#include "cortado/mechanisms/shared/part_scan.h"
#include "cortado/nn/linear/op.h"
#include "cortado/primitives/dplr_scan/op.h"

namespace cortado {
namespace {

// State: "shift" [rows,1,D], "scan_state" [rows,H,K,K].
class Rwkv7Mixer : public Mixer {
 public:
  Rwkv7Mixer(JsonReader& settings, const MixerContext& context)
      : Mixer("rwkv7"), dim_(context.dim), heads_(read_heads(settings, context, dim_, "dim")) {
    // The authors' ranks: multiples of 32 that grow with the square root of the width, and beyond 64 with the head.
    const auto rank = [&](const char* key, double factor, int64_t least = 1) {
      const double usual = factor * std::sqrt(static_cast<double>(dim_)) / 32;
      return settings.integer(key, least, 1 << 20, std::max<int64_t>(1, std::lrint(usual)) * 32);
    };
    const int64_t head_dim = dim_ / heads_;
    const double wide = static_cast<double>(head_dim) / 64;
    const int64_t decay_rank = rank("decay_rank", 2.5 * wide), rate_rank = rank("rate_rank", 2.5 * wide);
    const int64_t value_rank = rank("value_rank", 1.7 * wide, 0), gate_rank = rank("gate_rank", 5);
    norm_eps_ = settings.number("norm_eps", 0.0, 1.0, 64e-5);
    shares_values_ = value_rank > 0;
    register_mixes(context);
    const Tensor place = ramp(dim_) - 0.5, within = place_within_head();
    const double depth = Depth(context).ratio;
    register_map(decay_, "decay", ramp(dim_).pow(1 + std::pow(depth, 0.3)) * 6 - 5.5 + within * 2.5, decay_rank);
    register_map(rate_, "rate", within * 0.3 + place * 0.4 - 0.19, rate_rank);
    if (shares_values_ && context.layer > 0) register_map(value_, "value", 0.73 - place * 0.4, value_rank);
    register_map(gate_, "gate", {}, gate_rank);
    register_parameter(removal_scale_, "removal_scale", 0.71 - place * 0.1, Role::kDynamics);
    register_parameter(key_rate_, "key_rate", at::full({dim_}, 1.02), Role::kDynamics);
    register_parameter(bonus_, "bonus", at::full({heads_, dim_ / heads_}, -0.04), Role::kDynamics);
    register_linear_maps();
    const double share = static_cast<double>(context.layer + 1) / static_cast<double>(context.layers);
    register_parameter(norm_weight_, "norm_weight", at::full({dim_}, std::pow(share, 0.7)), Role::kGain);
    register_parameter(norm_bias_, "norm_bias", at::zeros({dim_}), Role::kGain);
  }

  Tensor reference(const Tensor& x) override {
    const Operands in = operands(x, previous_reference(x), nullptr);
    return output(std::get<0>(dplr_scan_reference(in.r, in.k, in.v, in.a, in.b, in.g, 1.0)), in);
  }

  double flops_per_token(int64_t) const override {
    int64_t low_rank = 0;
    for (const LowRank* map : {&decay_, &rate_, &value_, &gate_}) {
      if (map->down.defined()) low_rank += map->down.numel() + map->up.numel();
    }
    return weight_flops() + 2.0 * static_cast<double>(low_rank) + scan_flops(9);
  }

  bool shares_values() const override { return shares_values_; }

  Joining joining() const override { return {1, Joining::kDelta}; }

 private:
  // y = bias + up f(down x). No bias: undefined.
  struct LowRank {
    Tensor down, up, bias;  // [rank,D], [D,rank], [D]

    template <typename Function>
    Tensor of(const Tensor& x, const Function& f) const {
      const Tensor y = at::linear(f(at::linear(x, down)), up);
      return bias.defined() ? widen(y) + widen(bias) : y;
    }
    Tensor of(const Tensor& x) const {
      return of(x, [](const Tensor& low) { return low; });
    }
    // The same without the bias, not differentiable; f may change its argument.
    template <typename Function>
    Tensor unbiased(const Tensor& x, const Function& f) const {
      return linear_map(f(linear_map(x, down, {})), up, {});
    }
  };

  struct Operands {
    Tensor r, k, v, a, b, g;  // [B,T,H,K]; g: natural log of the decay
    Tensor gate;              // [B,T,D]
  };

  void declare(StateLayout& layout) const override {
    declare_shift(layout, dim_);
    layout.scan("scan_state", {heads_, dim_ / heads_, dim_ / heads_});
  }

  Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) override {
    return rwkv7::compute(
        "rwkv7", x, batch, [&] { return fused(x, batch, state); }, [&] { return by_operators(x, batch, state); });
  }

  Tensor by_operators(const Tensor& x, const Batch& batch, SequenceState* state) const {
    const Operands in = operands(x, previous(x, batch, state), batch.first_values);
    OptionalTensor start = start_of(state, "scan_state");
    if (batch.parts) start = dplr_state_before_part(in.k, in.v, in.a, in.b, in.g, *start, *batch.parts);
    const auto [o, last] = dplr_scan(in.r, in.k, in.v, in.a, in.b, in.g, 1.0, start, batch.cu_seqlens);
    keep(state, {{"scan_state", last}});
    return output(o, in);
  }

  // Without derivatives.
  Tensor fused(const Tensor& x, const Batch& batch, SequenceState* state) const {
    const auto itself = [](const Tensor& low) { return low; };
    const Tensor mixed = rwkv7::shifted(x, batch, state, {mix_r_, mix_w_, mix_k_, mix_v_, mix_a_, mix_g_});
    const Tensor for_values = mixed[3];
    rwkv7::Maps maps{.r = r_->forward(mixed[0]),
                     .key = k_->forward(mixed[2]),
                     .v = v_->forward(for_values),
                     .decay = decay_.unbiased(mixed[1], [](Tensor low) { return low.tanh_(); }),
                     .rate = rate_.unbiased(mixed[4], itself),
                     .gate = gate_.unbiased(mixed[5], [](Tensor low) { return low.sigmoid_(); }),
                     .share = {},
                     .first = {}};
    Tensor* first = shares_values_ ? batch.first_values : nullptr;
    if (first && first->defined()) {
      maps.share = value_.unbiased(for_values, itself);
      maps.first = *first;
    } else if (first) {
      *first = maps.v;
    }
    const rwkv7::Parameters parameters{.decay = decay_.bias,
                                       .rate = rate_.bias,
                                       .share = value_.bias,
                                       .removal_scale = removal_scale_,
                                       .key_rate = key_rate_,
                                       .bonus = bonus_,
                                       .norm_weight = norm_weight_,
                                       .norm_bias = norm_bias_,
                                       .norm_eps = norm_eps_};
    return o_->forward(rwkv7::read(maps, parameters, batch, state));
  }

  // -1 to 1 over the channels of each head, as a signed square.
  Tensor place_within_head() const {
    const Tensor place = 2 * ramp(dim_ / heads_) - 1;
    return (place * place.abs()).repeat({heads_});
  }

  void register_mixes(const MixerContext& context) {
    const Tensor place = at::arange(dim_, at::kFloat) / static_cast<double>(dim_);
    const auto add = [&](Tensor& mix, const char* name, double power) {
      register_parameter(mix, name, 1 - place.pow(power * Depth(context).rest), Role::kDynamics);
    };
    add(mix_r_, "mix_r", 0.2);
    add(mix_w_, "mix_w", 0.9);
    add(mix_k_, "mix_k", 0.7);
    add(mix_v_, "mix_v", 0.7);
    add(mix_a_, "mix_a", 0.9);
    add(mix_g_, "mix_g", 0.2);
  }

  void register_map(LowRank& map, const std::string& name, const Tensor& bias, int64_t rank) {
    if (bias.defined()) register_parameter(map.bias, name, bias, Role::kDynamics);
    register_parameter(map.down, name + "_down", at::zeros({rank, dim_}), Role::kMatrix);
    const double size = 0.1 / std::sqrt(static_cast<double>(std::max(rank, dim_)));
    register_parameter(map.up, name + "_up", at::empty({dim_, rank}).normal_(0, size), Role::kMatrix);
  }

  void register_linear_maps() {
    r_ = register_module("r", std::make_shared<Linear>(dim_, dim_));
    k_ = register_module("k", std::make_shared<Linear>(dim_, dim_));
    v_ = register_module("v", std::make_shared<Linear>(dim_, dim_));
    o_ = register_module("o", make_output_linear(dim_, dim_));
    const at::NoGradGuard no_grad;
    k_->weight.mul_(0.1);
  }

  // The values, mixed with those of the pass's first layer. That layer, and one that runs alone, keeps its own.
  Tensor values(const Tensor& x, Tensor* first) const {
    Tensor own = v_->forward(x);
    if (!shares_values_ || !first) return own;
    if (!first->defined()) return *first = own;
    return own + (first->to(own.scalar_type()) - own) * at::sigmoid(value_.of(x)).to(own.scalar_type());
  }

  Operands operands(const Tensor& x, const Tensor& before, Tensor* first_values) const {
    const Tensor change = before - x;
    const auto mixed = [&](const Tensor& mix) { return x + change * mix; };
    const Tensor rate = at::sigmoid(rate_.of(mixed(mix_a_))), key = widen(k_->forward(mixed(mix_k_)));
    const Tensor removal = split_heads(key * widen(removal_scale_), heads_);
    const Tensor unit = removal / at::linalg_vector_norm(removal, 2, at::IntArrayRef{-1}, true).clamp_min(1e-12);
    const Tensor decay = at::sigmoid(decay_.of(mixed(mix_w_), [](const Tensor& low) { return at::tanh(low); }));
    return {split_heads(r_->forward(mixed(mix_r_)), heads_),
            split_heads(key * (1 + (rate - 1) * widen(key_rate_)), heads_),
            split_heads(values(mixed(mix_v_), first_values), heads_),
            -unit,
            unit * split_heads(rate, heads_),
            split_heads(decay * -std::exp(-0.5), heads_),
            gate_.of(mixed(mix_g_), [](const Tensor& low) { return at::sigmoid(low); })};
  }

  // Normalises each head (LayerNorm) with one scale and one shift per channel, and adds the current token.
  Tensor output(const Tensor& o, const Operands& in) const {
    const Tensor normed = merge_heads(at::layer_norm(o, {o.size(-1)}, {}, {}, norm_eps_)) * norm_weight_ + norm_bias_;
    const Tensor now = (widen(in.r) * in.k * widen(bonus_)).sum(-1, true).to(o.scalar_type()) * in.v;
    return o_->forward((normed + merge_heads(now)) * in.gate);
  }

  int64_t dim_, heads_;
  double norm_eps_;
  bool shares_values_;
  std::shared_ptr<Linear> r_, k_, v_, o_;
  LowRank decay_, rate_, gate_, value_;                   // value_: undefined in a model's first layer
  Tensor mix_r_, mix_w_, mix_k_, mix_v_, mix_a_, mix_g_;  // [D]: the share of the previous token
  Tensor removal_scale_, key_rate_;                       // [D]
  Tensor bonus_;                                          // [H,K]
  Tensor norm_weight_, norm_bias_;                        // [D]
};

}  // namespace

extern const Mechanism kRwkv7 = {
    .name = "rwkv7",
    .family = "delta rule",
    .paper = "RWKV-7, Goose (Peng et al. 2025) eq. 3-17",
    .equation = "S_t = (diag(w_t) - (a_t kappa_t) kappa_t') S_{t-1} + k_t v_t', o_t = S_t' r_t",
    .state = "H K V + D, K = V = d",
    .primitives = {"dplr_scan", "short_conv"},
    .make = construct<Rwkv7Mixer>,
};

}  // namespace cortado
