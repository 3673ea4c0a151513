// mamba: the selective state space, a small state for every channel.
#pragma once

#include "cortado/mechanisms/mamba/scan.h"
#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/shared/state_space.h"
#include "cortado/nn/diagonal_ssm.h"

namespace cortado {

extern const Mechanism kMamba;

struct MambaSettings {
  int64_t inner;  // E: channels of x and z
  int64_t state;  // N
  int64_t rank;   // of the step size's projection
  int64_t taps;   // of the short convolution; 0: none
  bool conv_bias, bias;
};

// State: "scan_state" [rows, E, N], "conv" [rows, taps-1, E].
class MambaMixer : public Mixer {
 public:
  MambaMixer(const MambaSettings& settings, int64_t dim);

  Tensor reference(const Tensor& x) override;
  StateLayout state_layout() const override;
  double flops_per_token(int64_t tokens) const override;

 private:
  Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) override;

  SelectiveScan operands(const Tensor& convolved) const;
  Tensor output(const Tensor& y, const Tensor& x, const Tensor& z) const;

  MambaSettings settings_;
  std::shared_ptr<Linear> in_, select_, step_, out_;
  std::shared_ptr<ShortConvolution> conv_;
  Tensor a_log_, skip_, step_bias_;  // [E,N], [E], [E]
};

}  // namespace cortado
