#include "cortado/mechanisms/s5/mixer.h"

#include <cmath>

#include "cortado/primitives/common.h"

namespace cortado {

S5Mixer::S5Mixer(int64_t dim, int64_t states, bool causal) : Mixer("s5"), dim_(dim), states_(states), causal_(causal) {
  log_step_ = register_parameter("log_step", log_uniform({states}, 0.001, 0.1));
  log_decay_ = register_parameter("log_decay", at::full({states}, std::log(0.5)));
  frequency_ = register_parameter("frequency", at::empty({states}));
  b_ = register_parameter("b", at::empty({states, dim, 2}));
  c_ = register_parameter("c", at::empty({dim, states, 2}));
  if (!causal) c_back_ = register_parameter("c_back", at::empty({dim, states, 2}));
  skip_ = register_parameter("skip", at::empty({dim}));
  draw_normal(skip_, 1.0);
  gate_ = register_module("gate", std::make_shared<Linear>(dim, dim));
  initialize_hippo();
}

// The normal part of HiPPO-LegS, -I/2 + S with S skew-symmetric, in its eigenvectors: Λ = -1/2 ± iω, of each pair the
// one with ω > 0; B and C are random real matrices seen in that basis.
void S5Mixer::initialize_hippo() {
  const at::NoGradGuard no_grad;
  const int64_t size = 2 * states_;
  const Tensor root = (2 * at::arange(size, at::kDouble) + 1).sqrt();
  const Tensor lower = at::outer(root, root).tril(-1) * -0.5;
  const Tensor skew = lower - lower.t();
  // S = V iω V*: -iS is Hermitian, its eigenvalues ω come in ascending order.
  auto [omega, vectors] = at::linalg_eigh(at::complex(at::zeros_like(skew), -skew));
  const Tensor basis = vectors.narrow(1, states_, states_);
  frequency_.copy_(omega.narrow(0, states_, states_));
  Tensor b = at::empty({size, dim_}, at::kDouble), c = at::empty({dim_, size}, at::kDouble);
  lecun_normal(b, dim_);
  b_.copy_(at::view_as_real(at::matmul(basis.conj().t(), b.to(at::kComplexDouble))));
  for (Tensor* read : {&c_, &c_back_}) {
    if (!read->defined()) continue;
    lecun_normal(c, size);
    read->copy_(at::view_as_real(at::matmul(c.to(at::kComplexDouble), basis)));
  }
}

Tensor S5Mixer::output(const Tensor& x, const Tensor& y) const {
  const Tensor g = at::gelu(y, "none").to(x.scalar_type());
  return g * at::sigmoid(gate_->forward(g));
}

Tensor S5Mixer::system(const Tensor& u, const Batch& batch, SequenceState* state) const {
  const NoAutocast as_given;
  const auto wide = u.scalar_type();
  const Tensor b = b_.to(wide);
  const Discretized steps = discretize(log_step_, log_decay_, frequency_, wide);
  const Tensor inputs = at::complex(at::linear(u, b.select(2, 0)), at::linear(u, b.select(2, 1))) * steps.input;
  auto read = [&](const Tensor& h, const Tensor& c) {
    return at::linear(at::real(h), c.select(2, 0).to(wide)) - at::linear(at::imag(h), c.select(2, 1).to(wide));
  };
  Tensor y = read(complex_scan(steps.log_a, inputs, batch, state, "state"), c_);
  if (!causal_) y = y + read(complex_scan(steps.log_a, inputs, batch, nullptr, "state", /*reverse=*/true), c_back_);
  return 2 * y + skip_.to(wide) * u;
}

Tensor S5Mixer::mix(const Tensor& x, const Batch& batch, SequenceState* state) {
  return output(x, system(x.to(wide_type(x)), batch, state));
}

StateLayout S5Mixer::state_layout() const {
  StateLayout layout;
  layout.scan("state", {states_, 2});
  return layout;
}

double S5Mixer::flops_per_token(int64_t) const {
  const double directions = causal_ ? 1 : 2;
  return weight_flops() + 4.0 * static_cast<double>(states_ * dim_) * (1 + directions) +
         16.0 * static_cast<double>(states_) * directions + 12.0 * static_cast<double>(dim_);
}

const Mechanism kS5 = {
    .name = "s5",
    .family = "state space",
    .paper = "S5 (Smith et al. 2023)",
    .equation = "h_t = exp(Delta Lambda) h_{t-1} + B u_t, y_t = 2 Re(C h_t) + D u_t, o = gelu(y) sigmoid(W gelu(y))",
    .state = "2 N",
    .primitives = {"elementwise_scan"},
    .bidirectional = true,
    .make =
        [](JsonReader& settings, const MixerContext& context) {
          const int64_t states = settings.integer("states", 1, 65536, std::max<int64_t>(1, context.dim / 2));
          return std::make_shared<S5Mixer>(context.dim, states, context.causal);
        },
};

}  // namespace cortado
