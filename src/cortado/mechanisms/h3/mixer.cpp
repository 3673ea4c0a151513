// h3: a shift SSM over the keys, times the values, then a diagonal SSM, times the queries.
#include <cmath>

#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/shared/heads.h"
#include "cortado/nn/diagonal_ssm.h"
#include "cortado/nn/short_convolution.h"

namespace cortado {
namespace {

// State: "shift" [rows, taps - 1, D], "ssm" [rows, D·N, 2] (real and imaginary parts).
class H3Mixer : public Mixer {
 public:
  H3Mixer(JsonReader& settings, const MixerContext& context)
      : Mixer("h3"), dim_(context.dim), states_(settings.integer("states", 1, 4096, 32)) {
    const int64_t dim = dim_, states = states_, taps = settings.integer("taps", 1, 4096, 64);
    q_ = register_module("q", std::make_shared<Linear>(dim, dim));
    k_ = register_module("k", std::make_shared<Linear>(dim, dim));
    v_ = register_module("v", std::make_shared<Linear>(dim, dim));
    o_ = register_module("o", make_output_linear(dim, dim));
    shift_ = register_module("shift", std::make_shared<ShortConvolution>(dim, taps, false, "none"));
    // S4D-Lin: Λ_n = -1/2 + iπn, Δ log-uniform in [0.001, 0.1], C of variance 1.
    register_parameter(log_step_, "log_step", log_uniform({dim}, 0.001, 0.1), Role::kDynamics);
    register_parameter(log_decay_, "log_decay", at::full({dim, states}, std::log(0.5)), Role::kDynamics);
    register_parameter(frequency_, "frequency", (at::arange(states, at::kFloat) * M_PI).repeat({dim, 1}),
                       Role::kDynamics);
    register_parameter(c_, "c", at::empty({dim, states, 2}), Role::kMatrix);
    draw_normal(c_, std::sqrt(0.5));
    register_parameter(skip_, "skip", at::empty({dim}), Role::kGain);
    draw_normal(skip_, 1.0);
  }

  // Both systems by their impulse responses. Shift: the taps. Diagonal: K_j = 2 Re Σ_n C_n e^{jΔΛ_n} (e^{ΔΛ_n} -
  // 1)/Λ_n.
  Tensor reference(const Tensor& x) override {
    const Tensor k = k_->forward(x), taps = shift_->weight.flip(1).t();  // taps[i] weighs the key i tokens ago
    Tensor response = at::zeros({x.size(1), dim_}, x.options().requires_grad(false));
    const int64_t reach = std::min(taps.size(0), x.size(1));
    response = at::cat({taps.narrow(0, 0, reach), response.narrow(0, reach, x.size(1) - reach)});
    const Tensor u = convolve_reference(response, k) * v_->forward(x);

    const Tensor decay = log_decay_.exp(), step = log_step_.exp().unsqueeze(1);
    const Tensor lag = at::arange(x.size(1), x.options().requires_grad(false)).reshape({-1, 1, 1});
    const Tensor size = (-decay * step * lag).exp(), angle = frequency_ * step * lag;  // [T,D,N]
    // (e^{ΔΛ} - 1)/Λ in real and imaginary parts: the numerator times the conjugate of Λ, over |Λ|².
    const Tensor re = (-decay * step).exp() * (frequency_ * step).cos() - 1;
    const Tensor im = (-decay * step).exp() * (frequency_ * step).sin();
    const Tensor norm = decay.square() + frequency_.square();
    const Tensor b_re = (-re * decay + im * frequency_) / norm, b_im = (-im * decay - re * frequency_) / norm;
    const Tensor c_re = c_.select(2, 0), c_im = c_.select(2, 1);
    const Tensor g_re = c_re * b_re - c_im * b_im, g_im = c_re * b_im + c_im * b_re;
    const Tensor kernel = 2 * (size * (g_re * angle.cos() - g_im * angle.sin())).sum(2);
    return o_->forward(q_->forward(x) * (convolve_reference(kernel, u) + skip_ * u));
  }

  double flops_per_token(int64_t) const override {
    // A complex multiply-add is 8 operations; the recurrence and the read take one each per state.
    return weight_flops() + scan_flops(8);
  }

 private:
  void declare(StateLayout& layout) const override {
    shift_->declare(layout, "shift");
    layout.scan("ssm", {dim_ * states_, 2});
  }

  Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) override {
    const auto wide = wide_type(x);
    const Tensor shifted = shift_->forward(k_->forward(x), batch, state, "shift");
    const Tensor y = diagonal_ssm(shifted.to(wide) * v_->forward(x).to(wide), batch, state);
    return o_->forward((q_->forward(x).to(wide) * y).to(x.scalar_type()));
  }

  // y_t = 2 Re(Σ_n C_n h_tn) + skip u_t; u is [B,T,D], and each channel has N states of its own.
  Tensor diagonal_ssm(const Tensor& u, const Batch& batch, SequenceState* state) const {
    const Discretized system = discretize(log_step_.unsqueeze(1), log_decay_, frequency_, u.scalar_type());
    // The input's factor is applied to the output instead, so that the state is Σ_s e^{(t-s)ΔΛ} u_s.
    const Tensor read = 2 * at::view_as_complex(c_.to(u.scalar_type()).contiguous()) * system.input;
    return channel_ssm({system.log_a, {}, read}, u, batch, state, "ssm") + skip_.to(u.scalar_type()) * u;
  }

  int64_t dim_, states_;
  std::shared_ptr<Linear> q_, k_, v_, o_;
  std::shared_ptr<ShortConvolution> shift_;
  Tensor log_step_;               // [D]
  Tensor log_decay_, frequency_;  // Λ [D, N]
  Tensor c_;                      // C [D, N, 2]
  Tensor skip_;                   // [D]
};

}  // namespace

extern const Mechanism kH3 = {
    .name = "h3",
    .family = "state space",
    .paper = "H3 (Fu et al. 2023) §3.1, algorithm 1",
    .equation = "o = q * SSM_diagonal(SSM_shift(k) * v)",
    .state = "D (2 N + taps-1)",
    .primitives = {"short_conv"},
    .make = construct<H3Mixer>,
};

}  // namespace cortado
