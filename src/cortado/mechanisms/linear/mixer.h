// linear: attention with a feature map in place of the exponential, and the gated block of the linear-attention
// chapter.
#pragma once

#include "cortado/mechanisms/heads.h"
#include "cortado/mechanisms/registry.h"

namespace cortado {

extern const Mechanism kLinear;

struct LinearSettings {
  int64_t heads;
  std::string feature_map;  // "elu" (elu + 1) or "relu"
  bool normalize;           // divide by φ(q)·z
  double epsilon;           // added to the denominator
  bool gate;                // output times σ(W_g x)
  bool bias;                // of the projections, as in the chapter's listing
  bool causal;
};

class LinearMixer : public Mixer {
 public:
  LinearMixer(const LinearSettings& settings, int64_t dim);

  Tensor forward(const Tensor& x, const Batch& batch, SequenceState* state) override;
  Tensor reference(const Tensor& x) override;
  SequenceState zero_state(int64_t rows, const at::TensorOptions& options) const override;
  int64_t state_bytes(int64_t tokens) const override;
  double flops_per_token(int64_t tokens) const override;

 private:
  Tensor feature_map(const Tensor& x) const;
  Tensor mix(const Tensor& q, const Tensor& k, const Tensor& v, const Batch& batch, SequenceState* state) const;
  Tensor output(const Tensor& x, const Tensor& mixed) const;

  LinearSettings settings_;
  int64_t head_dim_;
  std::shared_ptr<Linear> q_, k_, v_, g_, o_;
};

}  // namespace cortado
