#include "cortado/mechanisms/h3/mixer.h"

namespace cortado {

// Both systems by their impulse responses. Shift: the taps. Diagonal: K_j = 2 Re Σ_n C_n e^{jΔΛ_n} (e^{ΔΛ_n} - 1)/Λ_n.
Tensor H3Mixer::reference(const Tensor& x) {
  const Tensor k = k_->forward(x), taps = shift_->weight.flip(1).t();  // taps[i]: of the key i tokens ago
  Tensor response = at::zeros({x.size(1), dim_}, x.options().requires_grad(false));
  const int64_t reach = std::min(taps.size(0), x.size(1));
  response = at::cat({taps.narrow(0, 0, reach), response.narrow(0, reach, x.size(1) - reach)});
  const Tensor u = convolve_reference(response, k) * v_->forward(x);

  const Tensor decay = log_decay_.exp(), step = log_step_.exp().unsqueeze(1);
  const Tensor lag = at::arange(x.size(1), x.options().requires_grad(false)).reshape({-1, 1, 1});
  const Tensor size = (-decay * step * lag).exp(), angle = frequency_ * step * lag;  // [T,D,N]
  // (e^{ΔΛ} - 1)/Λ as real and imaginary parts: the numerator times Λ's conjugate over |Λ|².
  const Tensor re = (-decay * step).exp() * (frequency_ * step).cos() - 1;
  const Tensor im = (-decay * step).exp() * (frequency_ * step).sin();
  const Tensor norm = decay.square() + frequency_.square();
  const Tensor b_re = (-re * decay + im * frequency_) / norm, b_im = (-im * decay - re * frequency_) / norm;
  const Tensor c_re = c_.select(2, 0), c_im = c_.select(2, 1);
  const Tensor g_re = c_re * b_re - c_im * b_im, g_im = c_re * b_im + c_im * b_re;
  const Tensor kernel = 2 * (size * (g_re * angle.cos() - g_im * angle.sin())).sum(2);
  return o_->forward(q_->forward(x) * (convolve_reference(kernel, u) + skip_ * u));
}

}  // namespace cortado
