#include "cortado/mechanisms/h3/mixer.h"

#include <cmath>

#include "cortado/nn/channel_ssm.h"

namespace cortado {

H3Mixer::H3Mixer(int64_t dim, int64_t states, int64_t taps) : Mixer("h3"), dim_(dim), states_(states) {
  q_ = register_module("q", std::make_shared<Linear>(dim, dim));
  k_ = register_module("k", std::make_shared<Linear>(dim, dim));
  v_ = register_module("v", std::make_shared<Linear>(dim, dim));
  o_ = register_module("o", make_output_linear(dim, dim));
  shift_ = register_module("shift", std::make_shared<ShortConvolution>(dim, taps, false, "none"));
  // S4D-Lin: Λ_n = -1/2 + iπn, Δ log-uniform in [0.001, 0.1], C of variance 1.
  log_step_ = register_parameter("log_step", log_uniform({dim}, 0.001, 0.1));
  log_decay_ = register_parameter("log_decay", at::full({dim, states}, std::log(0.5)));
  frequency_ = register_parameter("frequency", (at::arange(states, at::kFloat) * M_PI).repeat({dim, 1}));
  c_ = register_parameter("c", at::empty({dim, states, 2}));
  draw_normal(c_, std::sqrt(0.5));
  skip_ = register_parameter("skip", at::empty({dim}));
  draw_normal(skip_, 1.0);
}

// y_t = 2 Re(Σ_n C_n h_tn) + skip u_t, every channel of u [B,T,D] with N states of its own.
Tensor H3Mixer::diagonal_ssm(const Tensor& u, const Batch& batch, SequenceState* state) const {
  const Discretized system = discretize(log_step_.unsqueeze(1), log_decay_, frequency_, u.scalar_type());
  // What multiplies the input multiplies the output instead, so the state is Σ_s e^{(t-s)ΔΛ} u_s.
  const Tensor read = 2 * at::view_as_complex(c_.to(u.scalar_type()).contiguous()) * system.input;
  return channel_ssm({system.log_a, {}, read}, u, batch, state, "ssm") + skip_.to(u.scalar_type()) * u;
}

Tensor H3Mixer::mix(const Tensor& x, const Batch& batch, SequenceState* state) {
  const auto wide = wide_type(x);
  const Tensor shifted = shift_->forward(k_->forward(x), batch, state, "shift");
  const Tensor y = diagonal_ssm(shifted.to(wide) * v_->forward(x).to(wide), batch, state);
  return o_->forward((q_->forward(x).to(wide) * y).to(x.scalar_type()));
}

StateLayout H3Mixer::state_layout() const {
  StateLayout layout;
  shift_->declare(layout, "shift");
  layout.scan("ssm", {dim_ * states_, 2});
  return layout;
}

double H3Mixer::flops_per_token(int64_t) const {
  // A complex multiply-add is 8 operations: one in the recurrence, one in the reading.
  return weight_flops() + scan_flops(8);
}

const Mechanism kH3 = {
    .name = "h3",
    .family = "state space",
    .paper = "H3 (Fu et al. 2023) §3.1, algorithm 1",
    .equation = "o = q * SSM_diagonal(SSM_shift(k) * v)",
    .state = "D (2 N + taps - 1)",
    .primitives = {"short_conv"},
    .bidirectional = false,
    .make =
        [](JsonReader& settings, const MixerContext& context) {
          const int64_t states = settings.integer("states", 1, 4096, 32);
          return std::make_shared<H3Mixer>(context.dim, states, settings.integer("taps", 1, 4096, 64));
        },
};

}  // namespace cortado
