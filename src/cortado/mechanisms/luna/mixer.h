// luna: tokens attend to a few latents that have attended to the tokens.
#pragma once

#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/shared/heads.h"

namespace cortado {

extern const Mechanism kLuna;

// State (causal): "keys", "values" [rows, H, L, d]: Σ_s A_ls k_s and Σ_s A_ls v_s; "position" [rows].
class LunaMixer : public Mixer {
 public:
  LunaMixer(int64_t dim, int64_t heads, int64_t latents, bool causal);

  Tensor reference(const Tensor& x) override;
  StateLayout state_layout() const override;
  double flops_per_token(int64_t tokens) const override;

 private:
  Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) override;

  Tensor causal(const Tensor& x, const Batch& batch, SequenceState* state) const;
  Tensor bidirectional(const Tensor& x, const Batch& batch) const;
  Tensor reference_causal(const Tensor& q, const Tensor& k, const Tensor& v) const;
  Tensor latent_queries() const;  // W_p P [H,L,d]

  int64_t heads_, head_dim_, latents_;
  bool causal_;
  Tensor latents_p_;  // P [L, D]
  std::shared_ptr<Linear> p_, q_, k_, v_, o_;
  std::shared_ptr<Linear> k_latent_, v_latent_;  // bidirectional: of what the latents have read
};

}  // namespace cortado
