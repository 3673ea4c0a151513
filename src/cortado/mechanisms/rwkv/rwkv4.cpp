// rwkv4: a decaying softmax over the past, per channel.
#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/rwkv/shift.h"
#include "cortado/mechanisms/rwkv/wkv.h"
#include "cortado/mechanisms/shared/heads.h"

namespace cortado {
namespace {

// State: "shift" [rows,1,D]; "numerator", "denominator", "maximum" [rows,A].
class Rwkv4Mixer : public Mixer {
 public:
  Rwkv4Mixer(JsonReader& settings, const MixerContext& context)
      : Mixer("rwkv4"), dim_(context.dim), width_(settings.integer("width", 1, 1 << 20, dim_)) {
    const int64_t dim = dim_, width = width_;
    const Depth depth(context);
    const Tensor share = (at::arange(dim, at::kFloat) / static_cast<double>(dim)).pow(depth.rest);
    register_parameter(mix_k_, "mix_k", share.clone(), Role::kDynamics);
    register_parameter(mix_v_, "mix_v", share + 0.3 * depth.ratio, Role::kDynamics);
    register_parameter(mix_r_, "mix_r", share.sqrt(), Role::kDynamics);
    register_parameter(decay_, "decay", ramp(width).pow(0.7 + 1.3 * depth.ratio) * 8 - 5, Role::kDynamics);
    register_parameter(bonus_, "bonus", zigzag(width) * 0.5 + std::log(0.3), Role::kDynamics);
    k_ = register_module("k", std::make_shared<Linear>(dim, width));
    v_ = register_module("v", std::make_shared<Linear>(dim, width));
    r_ = register_module("r", std::make_shared<Linear>(dim, width));
    o_ = register_module("o", make_output_linear(width, dim));
  }

  Tensor reference(const Tensor& x) override {
    const Operands in = operands(x, previous_reference(x));
    return output(in.r, wkv_reference(in.k, in.v, rate(), widen(bonus_)));
  }

  double flops_per_token(int64_t) const override {
    // Three mixes of the shift, and about 20 operations per channel for the two sums and their quotient.
    return weight_flops() + 9.0 * static_cast<double>(dim_) + 20.0 * static_cast<double>(width_);
  }

 private:
  void declare(StateLayout& layout) const override {
    declare_shift(layout, dim_);
    layout.scan("numerator", {width_});
    layout.scan("denominator", {width_});
    layout.scan("maximum", {width_}, -std::numeric_limits<double>::infinity());
  }

  Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) override {
    const Operands in = operands(x, previous(x, batch, state));
    if (!state) return output(in.r, wkv(in.k, in.v, rate(), widen(bonus_), nullptr, batch.cu_seqlens));
    WkvState sums{state->at("numerator"), state->at("denominator"), state->at("maximum")};
    const Tensor mean = wkv(in.k, in.v, rate(), widen(bonus_), &sums, batch.cu_seqlens);
    keep(state, {{"numerator", sums.numerator}, {"denominator", sums.denominator}, {"maximum", sums.maximum}});
    return output(in.r, mean);
  }

  struct Operands {
    Tensor k, v, r;
  };

  Operands operands(const Tensor& x, const Tensor& before) const {
    const auto mixed = [&](const Tensor& mix) { return before + mix * (x - before); };
    return {widen(k_->forward(mixed(mix_k_))), widen(v_->forward(mixed(mix_v_))),
            at::sigmoid(r_->forward(mixed(mix_r_)))};
  }

  // w, the decay per token.
  Tensor rate() const { return widen(decay_).exp(); }

  Tensor output(const Tensor& r, const Tensor& mean) const { return o_->forward(r * mean.to(r.scalar_type())); }

  int64_t dim_, width_;
  std::shared_ptr<Linear> k_, v_, r_, o_;
  Tensor mix_k_, mix_v_, mix_r_;  // [D]
  Tensor decay_, bonus_;          // log w and u [A]
};

}  // namespace

extern const Mechanism kRwkv4 = {
    .name = "rwkv4",
    .family = "recurrence",
    .paper = "RWKV (Peng et al. 2023) eq. 11-16",
    .equation = "o_t = softmax over s<t of k_s - (t-1-s) w, and k_t + u, of v; times sigmoid(r_t)",
    .state = "4 D",
    .primitives = {"elementwise_scan", "running_max", "short_conv"},
    .make = construct<Rwkv4Mixer>,
};

}  // namespace cortado
