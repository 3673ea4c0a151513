// mamba2: state-space duality, a gated scan with one decay a head.
#pragma once

#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/shared/state_space.h"
#include "cortado/nn/diagonal_ssm.h"
#include "cortado/nn/norms.h"

namespace cortado {

extern const Mechanism kMamba2;

struct Mamba2Settings {
  int64_t inner;          // channels of x and z, all heads together
  int64_t heads, groups;  // groups of heads share B and C
  int64_t state;          // N
  int64_t taps;           // of the short convolution; 0: none
  bool conv_bias, bias;
  double norm_eps;
};

// State: "scan_state" [rows, H, N, P], "conv" [rows, taps-1, inner + 2·groups·N].
class Mamba2Mixer : public Mixer {
 public:
  Mamba2Mixer(const Mamba2Settings& settings, int64_t dim);

  Tensor reference(const Tensor& x) override;
  StateLayout state_layout() const override;
  double flops_per_token(int64_t tokens) const override;

 private:
  Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) override;

  struct Projected {
    Tensor z, mixed, step;  // mixed: x, B and C before the convolution
  };
  struct Operands {
    Tensor x, q, k, v, g;
  };
  Projected project(const Tensor& x) const;
  Operands operands(const Tensor& convolved, const Tensor& step) const;
  Tensor output(const Tensor& o, const Tensor& x, const Tensor& z) const;

  Mamba2Settings settings_;
  std::shared_ptr<Linear> in_, out_;
  std::shared_ptr<ShortConvolution> conv_;
  std::shared_ptr<RmsNorm> norm_;
  Tensor a_log_, skip_, step_bias_;  // [H]
};

}  // namespace cortado
