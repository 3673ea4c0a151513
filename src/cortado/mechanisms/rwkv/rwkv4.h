// rwkv4: a decaying softmax over the past for every channel.
#pragma once

#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/shared/heads.h"

namespace cortado {

extern const Mechanism kRwkv4;

// State: "shift" [rows,1,D]; "numerator", "denominator", "maximum" [rows,A].
class Rwkv4Mixer : public Mixer {
 public:
  Rwkv4Mixer(int64_t dim, int64_t width, const MixerContext& context);

  Tensor reference(const Tensor& x) override;
  StateLayout state_layout() const override;
  double flops_per_token(int64_t tokens) const override;

 private:
  Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) override;

  struct Operands {
    Tensor k, v, r;
  };
  Operands operands(const Tensor& x, const Tensor& before) const;
  Tensor rate() const;  // w
  Tensor output(const Tensor& r, const Tensor& mean) const;

  int64_t dim_, width_;
  std::shared_ptr<Linear> k_, v_, r_, o_;
  Tensor mix_k_, mix_v_, mix_r_;  // [D]
  Tensor decay_, bonus_;          // log w and u [A]
};

}  // namespace cortado
