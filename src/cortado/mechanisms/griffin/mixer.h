// griffin: the recurrent block of Griffin and Hawk, a gelu gate on a short convolution and an RG-LRU.
#pragma once

#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/shared/heads.h"
#include "cortado/nn/rg_lru.h"
#include "cortado/nn/short_convolution.h"

namespace cortado {

extern const Mechanism kGriffin;

// State: "tail" [rows, taps - 1, R], "h" [rows, R], "position" [rows]; R the recurrence's width.
class GriffinMixer : public Mixer {
 public:
  GriffinMixer(int64_t dim, int64_t width, int64_t heads, int64_t taps);

  Tensor reference(const Tensor& x) override;
  StateLayout state_layout() const override;
  double flops_per_token(int64_t tokens) const override;

 private:
  Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) override;

  Tensor output(const Tensor& x, const Tensor& h) const;

  int64_t width_;
  std::shared_ptr<Linear> x_, y_, o_;
  std::shared_ptr<ShortConvolution> conv_;
  std::shared_ptr<RgLru> rg_lru_;
};

}  // namespace cortado
