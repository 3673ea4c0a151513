// rg_lru: Griffin's recurrent unit as a mixer of its own, followed by an output projection.
#pragma once

#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/shared/heads.h"
#include "cortado/nn/rg_lru.h"

namespace cortado {

extern const Mechanism kRgLru;

// State: "h" [rows, D], "position" [rows].
class RgLruMixer : public Mixer {
 public:
  RgLruMixer(int64_t dim, int64_t heads, bool causal);

  Tensor reference(const Tensor& x) override;
  StateLayout state_layout() const override;
  double flops_per_token(int64_t tokens) const override;

 private:
  Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) override;

  int64_t dim_;
  bool causal_;
  std::shared_ptr<RgLru> rg_lru_;
  std::shared_ptr<Linear> o_;
};

}  // namespace cortado
