// gated_slot: gated slot attention (GSA), softmax attention over M slots with a data-dependent forget gate a slot.
#pragma once

#include "cortado/mechanisms/gated_slot/op.h"
#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/shared/convolved.h"
#include "cortado/mechanisms/shared/heads.h"
#include "cortado/mechanisms/shared/slot_state.h"
#include "cortado/nn/norms.h"

namespace cortado {

extern const Mechanism kGatedSlotAttention;
OperatorCase gated_slot_case();

struct GatedSlotSettings {
  int64_t heads, slots;
  double temperature;  // τ: log α = logsigmoid(W_f x) / τ
  int64_t taps;        // of the short convolutions on q, k, v; 0: none
};

// State: declare_slots', and the convolutions' tails "q_conv", "k_conv", "v_conv".
class GatedSlotMixer : public Mixer {
 public:
  GatedSlotMixer(const GatedSlotSettings& settings, int64_t dim);

  Tensor reference(const Tensor& x) override;
  StateLayout state_layout() const override;
  double flops_per_token(int64_t tokens) const override;

 private:
  Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) override;

  Tensor log_gate(const Tensor& x) const;  // log α_t [B,T,H,M]
  Tensor output(const Tensor& o) const;

  GatedSlotSettings settings_;
  int64_t head_dim_;
  ConvolvedLinear q_, k_, v_;
  std::shared_ptr<Linear> f_, o_;
  std::shared_ptr<RmsNorm> norm_;
};

}  // namespace cortado
