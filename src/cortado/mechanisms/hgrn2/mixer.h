// hgrn2: gated linear attention whose key is what its gate forgets.
#pragma once

#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/shared/convolved.h"
#include "cortado/mechanisms/shared/heads.h"
#include "cortado/nn/norms.h"

namespace cortado {

extern const Mechanism kHgrn2;

struct Hgrn2Settings {
  int64_t heads;
  int64_t key_dim;     // of all heads together
  int64_t taps;        // of the short convolutions on q, f and i; 0: none
  double lower_bound;  // l in [0, 1): every gate is in [l, 1]
};

// f = l + (1 - l) σ(W_f x), y = W_o RMSNorm(scan(silu(W_q x), 1 - f, W_i x, log f)).
// State: "scan_state" [rows, H, K, V], with convolutions their tails "q_conv", "f_conv", "i_conv".
class Hgrn2Mixer : public Mixer {
 public:
  Hgrn2Mixer(const Hgrn2Settings& settings, int64_t dim);

  Tensor reference(const Tensor& x) override;
  StateLayout state_layout() const override;
  double flops_per_token(int64_t tokens) const override;

 private:
  Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) override;

  Tensor heads(const Tensor& x) const { return split_heads(x, settings_.heads); }
  Tensor output(const Tensor& o) const { return o_->forward(norm_->forward(merge_heads(o))); }

  const Hgrn2Settings settings_;
  const int64_t dim_;
  ConvolvedLinear q_, f_, i_;
  std::shared_ptr<RmsNorm> norm_;
  std::shared_ptr<Linear> o_;
};

}  // namespace cortado
