// mamba2: state-space duality, a gated scan with one decay per head.
#include "cortado/mechanisms/mamba2/mixer.h"

#include "cortado/mechanisms/mamba2/op.h"
#include "cortado/mechanisms/shared/convolved.h"
#include "cortado/mechanisms/shared/heads.h"
#include "cortado/mechanisms/shared/inner_width.h"
#include "cortado/nn/diagonal_ssm.h"
#include "cortado/nn/gated_silu/op.h"
#include "cortado/nn/norm/norms.h"
#include "cortado/primitives/gated_scan/op.h"

namespace cortado {
namespace {

// State: "scan_state" [rows, H, N, P], "conv" [rows, taps-1, inner + 2·groups·N].
class Mamba2Mixer : public Mixer {
 public:
  Mamba2Mixer(JsonReader& settings, const MixerContext& context)
      : Mixer("mamba2"),
        inner_(read_inner_width(settings, context)),
        heads_(read_heads(settings, context, inner_, "the width")),
        groups_(settings.integer("groups", 1, 65536, 1)) {
    settings.fail_if(heads_ % groups_ != 0, "heads (", heads_, ") is not divisible by groups (", groups_, ")");
    state_ = settings.integer("state", 1, 1 << 16, 128);
    const int64_t taps = read_taps(settings, 4), mixed = inner_ + 2 * groups_ * state_;
    const bool conv_bias = settings.boolean("conv_bias", true), bias = settings.boolean("bias", false);
    const std::string norm = settings.choice("norm", {"after_gate", "before_gate", "none"}, "after_gate");
    gates_last_ = norm == "before_gate";
    step_min_ = settings.number("step_min", 0.0, 1e3, 0.0);
    in_ = register_module("in", std::make_shared<Linear>(context.dim, inner_ + mixed + heads_, bias));
    if (taps > 0) conv_ = register_module("conv", std::make_shared<ShortConvolution>(mixed, taps, conv_bias));
    register_parameter(a_log_, "a_log", at::empty({heads_}).uniform_(1, 16).log(), Role::kDynamics);
    register_parameter(skip_, "skip", at::ones({heads_}), Role::kGain);
    register_parameter(step_bias_, "step_bias", initial_step_bias({heads_}), Role::kDynamics);
    if (norm != "none") {
      const double norm_eps = settings.number("norm_eps", 0.0, 1.0, 1e-5);
      norm_ = register_module("norm", std::make_shared<RmsNorm>(inner_, norm_eps, groups_));
    }
    out_ = register_module("out", make_output_linear(inner_, context.dim, bias));
  }

  Tensor reference(const Tensor& x) override {
    const Tensor all = in_->forward(x);
    const auto parts = all.split_with_sizes({inner_, sizes().mixed(), heads_}, -1);
    const Mamba2Operands now = mamba2_operands(sizes(), dynamics(), convolve_reference(conv_, parts[1]), parts[2]);
    const Tensor o = std::get<0>(gated_scan_reference(now.q, now.k, now.v, now.g, "key", 1.0));
    return output(with_skip(o, now.x, dynamics()), parts[0]);
  }

  double flops_per_token(int64_t) const override { return weight_flops() + scan_flops(5); }

  Joining joining() const override { return {conv_ ? conv_->weight.size(1) : 1}; }

 private:
  void declare(StateLayout& layout) const override {
    layout.scan("scan_state", {heads_, state_, inner_ / heads_});
    if (conv_) conv_->declare(layout, "conv");
  }

  Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) override {
    const Tensor all = in_->forward(x);
    return output(mamba2_scan(sizes(), dynamics(), conv_, all, batch, state), all.narrow(-1, 0, inner_));
  }

  // RMSNorm(y ⊙ silu(z)), or as "norm" says.
  Tensor output(const Tensor& y, const Tensor& z) const {
    if (gates_last_) return out_->forward(gated_silu(z, norm_->forward(y.to(z.scalar_type()))));
    const Tensor gated = gated_silu(widen(z), y).to(z.scalar_type());
    return out_->forward(norm_ ? norm_->forward(gated) : gated);
  }

  Mamba2Shape sizes() const { return {inner_, heads_, groups_, state_, step_min_}; }
  Mamba2Dynamics dynamics() const { return {widen(a_log_), widen(skip_), widen(step_bias_)}; }

  int64_t inner_;           // channels of x and z, summed over the heads
  int64_t heads_, groups_;  // groups of heads share B and C
  int64_t state_;           // N
  bool gates_last_;         // the gate follows the norm
  double step_min_;
  std::shared_ptr<Linear> in_, out_;
  std::shared_ptr<ShortConvolution> conv_;
  std::shared_ptr<RmsNorm> norm_;    // null: none
  Tensor a_log_, skip_, step_bias_;  // [H]
};

}  // namespace

const Mechanism kMamba2 = {
    .name = "mamba2",
    .family = "state space",
    .paper = "Mamba-2 (Dao & Gu 2024) eq. 1-2, §6-7",
    .equation = "S_t = exp(-A dt_t) S_{t-1} + dt_t B_t x_t', y_t = S_t' C_t + D x_t",
    .state = "E N + (taps-1) (E + 2 groups N), E = 2 D",
    .primitives = {"gated_scan", "short_conv"},
    .make = construct<Mamba2Mixer>,
};

}  // namespace cortado
