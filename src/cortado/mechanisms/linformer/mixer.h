// linformer: attention to keys and values projected along time to a fixed number. An encoder of fixed length.
#pragma once

#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/shared/heads.h"

namespace cortado {

extern const Mechanism kLinformer;

// No state: it has no causal form.
class LinformerMixer : public Mixer {
 public:
  LinformerMixer(int64_t dim, int64_t heads, int64_t latents, int64_t length);

  Tensor reference(const Tensor& x) override;
  double flops_per_token(int64_t tokens) const override;

 private:
  Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) override;

  int64_t heads_, head_dim_, latents_, length_;
  std::shared_ptr<Linear> q_, k_, v_, o_;
  Tensor e_, f_;  // E, F [L, length]
};

}  // namespace cortado
