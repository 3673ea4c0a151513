// gated_slot: gated slot attention (GSA), softmax attention over M slots with a data-dependent forget gate a slot.
#pragma once

#include "cortado/mechanisms/gated_slot/op.h"
#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/shared/convolved.h"
#include "cortado/mechanisms/shared/heads.h"
#include "cortado/nn/norms.h"

namespace cortado {

extern const Mechanism kGatedSlotAttention;

// Slots in a SequenceState: "key_state" [rows,H,M,d], "value_state" [rows,H,M,d].
void add_slot_state(SequenceState& state, int64_t rows, int64_t heads, int64_t slots, int64_t head_dim,
                    const at::TensorOptions& options);
void keep_slots(SequenceState* state, const SlotResult& result);
// Two scans of M slots: written, and read.
double slot_flops(int64_t heads, int64_t slots, int64_t head_dim);

struct GatedSlotSettings {
  int64_t heads, slots;
  double temperature;  // τ: log α = logsigmoid(W_f x) / τ
  int64_t conv;        // taps of the short convolutions on q, k, v; 0: none
};

// State: add_slot_state's, and the convolutions' tails "q_conv", "k_conv", "v_conv".
class GatedSlotMixer : public Mixer {
 public:
  GatedSlotMixer(const GatedSlotSettings& settings, int64_t dim);

  Tensor forward(const Tensor& x, const Batch& batch, SequenceState* state) override;
  Tensor reference(const Tensor& x) override;
  SequenceState zero_state(int64_t rows, const at::TensorOptions& options) const override;
  int64_t state_bytes(int64_t tokens) const override;
  double flops_per_token(int64_t tokens) const override;

 private:
  Tensor log_gate(const Tensor& x) const;  // log α_t [B,T,H,M]
  Tensor output(const Tensor& o) const;

  GatedSlotSettings settings_;
  int64_t head_dim_;
  ConvolvedLinear q_, k_, v_;
  std::shared_ptr<Linear> f_, o_;
  std::shared_ptr<RmsNorm> norm_;
};

}  // namespace cortado
