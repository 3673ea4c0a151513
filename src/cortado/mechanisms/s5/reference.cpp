#include "cortado/mechanisms/s5/mixer.h"

namespace cortado {

// Token by token in real arithmetic: Λ = -λ + iω, h = p + iq.
Tensor S5Mixer::reference(const Tensor& x) {
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

}  // namespace cortado
