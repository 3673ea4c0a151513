// h3: a shift SSM on the keys, times the values, a diagonal SSM, times the queries.
#pragma once

#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/shared/heads.h"
#include "cortado/nn/diagonal_ssm.h"
#include "cortado/nn/short_convolution.h"

namespace cortado {

extern const Mechanism kH3;

// State: "shift" [rows, taps - 1, D], "ssm" [rows, D·N, 2] (real and imaginary parts).
class H3Mixer : public Mixer {
 public:
  H3Mixer(int64_t dim, int64_t states, int64_t taps);

  Tensor reference(const Tensor& x) override;
  StateLayout state_layout() const override;
  double flops_per_token(int64_t tokens) const override;

 private:
  Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) override;

  Tensor diagonal_ssm(const Tensor& u, const Batch& batch, SequenceState* state) const;

  int64_t dim_, states_;
  std::shared_ptr<Linear> q_, k_, v_, o_;
  std::shared_ptr<ShortConvolution> shift_;
  Tensor log_step_;               // [D]
  Tensor log_decay_, frequency_;  // Λ [D, N]
  Tensor c_;                      // C [D, N, 2]
  Tensor skip_;                   // [D]
};

}  // namespace cortado
