// latte: linear-time attention through L latent states.
#pragma once

#include "cortado/mechanisms/latte/op.h"
#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/shared/heads.h"

namespace cortado {

// The parts of a SequenceState that are Latte's: "latte_state", "latte_normalizer", "latte_maximum".
void declare_latte(StateLayout& layout, int64_t heads, int64_t latents_per_head, int64_t head_dim);
LatteState latte_start(const SequenceState* state);
void keep_latte(SequenceState* state, const LatteResult& result);

class LatteMixer : public Mixer {
 public:
  LatteMixer(int64_t dim, int64_t heads, int64_t latents, bool causal);

  Tensor reference(const Tensor& x) override;
  StateLayout state_layout() const override;
  double flops_per_token(int64_t tokens) const override;

 private:
  Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) override;

  int64_t heads_, latents_, head_dim_;  // latents_: per head
  bool causal_;
  std::shared_ptr<Linear> q_, k_, v_, o_;
};

}  // namespace cortado
