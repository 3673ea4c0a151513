// s5: one multi-input multi-output system with a diagonal complex state, and a gated gelu.
#pragma once

#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/shared/heads.h"
#include "cortado/nn/diagonal_ssm.h"

namespace cortado {

extern const Mechanism kS5;

// State: "state" [rows, N, 2] (real and imaginary parts).
class S5Mixer : public Mixer {
 public:
  S5Mixer(int64_t dim, int64_t states, bool causal);

  Tensor reference(const Tensor& x) override;
  StateLayout state_layout() const override;
  double flops_per_token(int64_t tokens) const override;

 private:
  Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) override;

  void initialize_hippo();
  // u [B,T,D], wide: what the system makes of it, in u's type also under autocast.
  Tensor system(const Tensor& u, const Batch& batch, SequenceState* state) const;
  Tensor output(const Tensor& x, const Tensor& y) const;

  int64_t dim_, states_;
  bool causal_;
  Tensor log_step_, log_decay_, frequency_;  // [N]
  Tensor b_;                                 // B [N, D, 2]
  Tensor c_, c_back_;                        // C [D, N, 2]; c_back_: of the state that runs backwards
  Tensor skip_;                              // [D]
  std::shared_ptr<Linear> gate_;
};

}  // namespace cortado
