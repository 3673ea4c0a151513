// s5: one multi-input, multi-output system with a diagonal complex state, and a gated gelu.
#include <cmath>

#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/shared/heads.h"
#include "cortado/nn/diagonal_ssm.h"
#include "cortado/primitives/common.h"
#include "cortado/primitives/elementwise_scan/op.h"

namespace cortado {
namespace {

// State: "state" [rows, N, 2] (real and imaginary parts).
class S5Mixer : public Mixer {
 public:
  S5Mixer(JsonReader& settings, const MixerContext& context)
      : Mixer("s5"),
        dim_(context.dim),
        states_(settings.integer("states", 1, 65536, std::max<int64_t>(1, dim_ / 2))),
        causal_(context.causal) {
    const int64_t dim = dim_, states = states_;
    register_parameter(log_step_, "log_step", log_uniform({states}, 0.001, 0.1), Role::kDynamics);
    register_parameter(log_decay_, "log_decay", at::full({states}, std::log(0.5)), Role::kDynamics);
    register_parameter(frequency_, "frequency", at::empty({states}), Role::kDynamics);
    register_parameter(b_, "b", at::empty({states, dim, 2}), Role::kMatrix);
    register_parameter(c_, "c", at::empty({dim, states, 2}), Role::kMatrix);
    if (!causal_) register_parameter(c_back_, "c_back", at::empty({dim, states, 2}), Role::kMatrix);
    register_parameter(skip_, "skip", at::empty({dim}), Role::kGain);
    draw_normal(skip_, 1.0);
    gate_ = register_module("gate", std::make_shared<Linear>(dim, dim));
    initialize_hippo();
  }

  // Token by token, in real arithmetic: Λ = -λ + iω, h = p + iq.
  Tensor reference(const Tensor& x) override {
    const Tensor decay = log_decay_.exp(), step = log_step_.exp(), norm = decay.square() + frequency_.square();
    const Tensor size = (-decay * step).exp();
    const Tensor a_re = size * (frequency_ * step).cos(), a_im = size * (frequency_ * step).sin();
    // (e^{ΔΛ} - 1)/Λ
    const Tensor f_re = (-(a_re - 1) * decay + a_im * frequency_) / norm;
    const Tensor f_im = (-a_im * decay - (a_re - 1) * frequency_) / norm;
    const Tensor u_re = at::linear(x, b_.select(2, 0)), u_im = at::linear(x, b_.select(2, 1));
    const Tensor in_re = f_re * u_re - f_im * u_im, in_im = f_re * u_im + f_im * u_re;

    auto run = [&](const Tensor& c, bool backwards) {
      const int64_t tokens = x.size(1);
      Tensor p = at::zeros_like(in_re.select(1, 0)), q = p;
      std::vector<Tensor> outputs(tokens);
      for (int64_t i = 0; i < tokens; ++i) {
        const int64_t t = backwards ? tokens - 1 - i : i;
        const Tensor before = p;
        p = a_re * p - a_im * q + in_re.select(1, t);
        q = a_im * before + a_re * q + in_im.select(1, t);
        outputs[t] = 2 * (at::linear(p, c.select(2, 0)) - at::linear(q, c.select(2, 1)));
      }
      return at::stack(outputs, 1);
    };
    Tensor y = run(c_, false) + skip_ * x;
    if (!causal_) y = y + run(c_back_, true);
    return output(x, y);
  }

  double flops_per_token(int64_t) const override {
    const double directions = causal_ ? 1 : 2;
    return weight_flops() + 4.0 * static_cast<double>(states_ * dim_) * (1 + directions) +
           16.0 * static_cast<double>(states_) * directions + 12.0 * static_cast<double>(dim_);
  }

 private:
  void declare(StateLayout& layout) const override { layout.scan("state", {states_, 2}); }

  Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) override {
    return output(x, system(x.to(wide_type(x)), batch, state));
  }

  // Initialises by the normal part of HiPPO-LegS, -I/2 + S with S skew-symmetric, in the basis of its eigenvectors. Λ =
  // -1/2 ± iω; of each conjugate pair the one with ω > 0 is kept. B and C are random real matrices expressed in that
  // basis.
  void initialize_hippo() {
    const at::NoGradGuard no_grad;
    const int64_t size = 2 * states_;
    const Tensor root = (2 * at::arange(size, at::kDouble) + 1).sqrt();
    const Tensor lower = at::outer(root, root).tril(-1) * -0.5;
    const Tensor skew = lower - lower.t();
    // S = V iω V*: -iS is Hermitian, and its eigenvalues ω come in ascending order.
    auto [omega, vectors] = at::linalg_eigh(at::complex(at::zeros_like(skew), -skew));
    // The phase of an eigenvector is arbitrary, and LAPACK's choice differs between machines. It is fixed by making the
    // first entry, which is never 0, positive.
    const Tensor basis = vectors.narrow(1, states_, states_) * at::sgn(vectors[0].narrow(0, states_, states_)).conj();
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

  // The system's output for u [B,T,D], which is float32 or float64. Computed in u's type, also under autocast.
  Tensor system(const Tensor& u, const Batch& batch, SequenceState* state) const {
    const NoAutocast as_given;
    const auto wide = u.scalar_type();
    const Tensor b = b_.to(wide);
    const Discretized steps = discretize(log_step_, log_decay_, frequency_, wide);
    const Tensor inputs = at::complex(at::linear(u, b.select(2, 0)), at::linear(u, b.select(2, 1))) * steps.input;
    auto read = [&](const Tensor& h, const Tensor& c) {
      return at::linear(at::real(h), c.select(2, 0).to(wide)) - at::linear(at::imag(h), c.select(2, 1).to(wide));
    };
    const auto scan = [&](const OptionalTensor& start, bool reverse) {
      return elementwise_scan(steps.log_a.expand(inputs.sizes()), inputs, start, batch.cu_seqlens, reverse);
    };
    OptionalTensor start;
    if (state) start = at::view_as_complex(state->at("state"));
    const auto [h, last] = scan(start, /*reverse=*/false);
    if (state) state->at("state") = at::view_as_real(last);
    Tensor y = read(h, c_);
    if (!causal_) y = y + read(std::get<0>(scan({}, /*reverse=*/true)), c_back_);
    return 2 * y + skip_.to(wide) * u;
  }

  Tensor output(const Tensor& x, const Tensor& y) const {
    const Tensor g = at::gelu(y, "none").to(x.scalar_type());
    return g * at::sigmoid(gate_->forward(g));
  }

  int64_t dim_, states_;
  bool causal_;
  Tensor log_step_, log_decay_, frequency_;  // [N]
  Tensor b_;                                 // B [N, D, 2]
  Tensor c_, c_back_;                        // C [D, N, 2]; c_back_: C of the backward state
  Tensor skip_;                              // [D]
  std::shared_ptr<Linear> gate_;
};

}  // namespace

extern const Mechanism kS5 = {
    .name = "s5",
    .family = "state space",
    .paper = "S5 (Smith et al. 2023)",
    .equation = "h_t = exp(Delta Lambda) h_{t-1} + B u_t, y_t = 2 Re(C h_t) + D u_t, o = gelu(y) sigmoid(W gelu(y))",
    .state = "2 N",
    .primitives = {"elementwise_scan"},
    .bidirectional = true,
    .make = construct<S5Mixer>,
};

}  // namespace cortado
