// mamba: a selective state space with a small state per channel.
#include "cortado/mechanisms/mamba/op.h"
#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/shared/convolved.h"
#include "cortado/mechanisms/shared/heads.h"
#include "cortado/nn/diagonal_ssm.h"
#include "cortado/nn/norm/norms.h"

namespace cortado {
namespace {

// State: "scan_state" [rows, E, N], "conv" [rows, taps-1, E].
class MambaMixer : public Mixer {
 public:
  MambaMixer(JsonReader& settings, const MixerContext& context)
      : Mixer("mamba"),
        inner_(settings.integer("expand", 1, 64, 2) * context.dim),
        state_(settings.integer("state", 1, 1 << 16, 16)),
        rank_(settings.integer("step_rank", 1, 1 << 20, (context.dim + 15) / 16)) {
    const int64_t taps = read_taps(settings, 4);
    const bool conv_bias = settings.boolean("conv_bias", true), bias = settings.boolean("bias", false);
    in_ = register_module("in", std::make_shared<Linear>(context.dim, 2 * inner_, bias));
    if (taps > 0) conv_ = register_module("conv", std::make_shared<ShortConvolution>(inner_, taps, conv_bias));
    select_ = register_module("select", std::make_shared<Linear>(inner_, rank_ + 2 * state_));
    step_ = register_module("step", std::make_shared<Linear>(rank_, inner_));
    register_parameter(step_bias_, "step_bias", initial_step_bias({inner_}), Role::kDynamics);
    const Tensor count = at::arange(1, state_ + 1, at::TensorOptions().dtype(at::kFloat));
    register_parameter(a_log_, "a_log", count.log().repeat({inner_, 1}), Role::kDynamics);
    register_parameter(skip_, "skip", at::ones({inner_}), Role::kGain);
    out_ = register_module("out", make_output_linear(inner_, context.dim, bias));
    if (!settings.boolean("select_norm", false)) return;
    const double norm_eps = settings.number("norm_eps", 0.0, 1.0, 1e-6);
    step_norm_ = register_module("step_norm", std::make_shared<RmsNorm>(rank_, norm_eps));
    b_norm_ = register_module("b_norm", std::make_shared<RmsNorm>(state_, norm_eps));
    c_norm_ = register_module("c_norm", std::make_shared<RmsNorm>(state_, norm_eps));
  }

  Tensor reference(const Tensor& x) override {
    const auto halves = in_->forward(x).chunk(2, -1);
    const Tensor convolved = convolve_reference(conv_, halves[0]);
    return output(selective_scan_reference(operands(convolved)), convolved, halves[1]);
  }

  double flops_per_token(int64_t) const override { return weight_flops() + scan_flops(7); }

 private:
  void declare(StateLayout& layout) const override {
    layout.scan("scan_state", {inner_, state_});
    if (conv_) conv_->declare(layout, "conv");
  }

  Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) override {
    const auto halves = in_->forward(x).chunk(2, -1);
    const Tensor convolved = convolve(conv_, halves[0], batch, state);
    const Tensor start =
        state ? state->at("scan_state") : at::zeros({batch.rows(x), inner_, state_}, scan_options(convolved.options()));
    auto [y, last] = selective_scan(operands(convolved), start, batch.cu_seqlens);
    keep(state, {{"scan_state", last}});
    return output(y, convolved, halves[1]);
  }

  SelectiveScan operands(const Tensor& convolved) const {
    auto parts = select_->forward(convolved).split_with_sizes({rank_, state_, state_}, -1);
    if (step_norm_) parts = {step_norm_->forward(parts[0]), b_norm_->forward(parts[1]), c_norm_->forward(parts[2])};
    const Tensor step = at::softplus(widen(step_->forward(parts[0])) + widen(step_bias_));
    return {widen(convolved), step, -widen(a_log_).exp(), widen(parts[1]), widen(parts[2])};
  }

  // (y + D x) ⊙ silu(z)
  Tensor output(const Tensor& y, const Tensor& x, const Tensor& z) const {
    return out_->forward(((y + widen(skip_) * x) * at::silu(z)).to(z.scalar_type()));
  }

  int64_t inner_;  // E: channels of x and z
  int64_t state_;  // N
  int64_t rank_;   // rank of the step size's projection
  std::shared_ptr<Linear> in_, select_, step_, out_;
  std::shared_ptr<ShortConvolution> conv_;
  std::shared_ptr<RmsNorm> step_norm_, b_norm_, c_norm_;
  Tensor a_log_, skip_, step_bias_;  // [E,N], [E], [E]
};

}  // namespace

extern const Mechanism kMamba = {
    .name = "mamba",
    .family = "state space",
    .paper = "Mamba (Gu & Dao 2023) eq. 2, algorithm 2",
    .equation = "h_t = exp(dt_t A) h_{t-1} + dt_t x_t B_t, y_t = h_t C_t + D x_t",
    .state = "E (N + taps-1), E = 2 D",
    .primitives = {"short_conv"},
    .make = construct<MambaMixer>,
};

}  // namespace cortado
