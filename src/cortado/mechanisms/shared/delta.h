// What DeltaNet, Gated DeltaNet and KDA share: everything but the decay.
#pragma once

#include "cortado/mechanisms/mixer.h"
#include "cortado/mechanisms/shared/convolved.h"
#include "cortado/mechanisms/shared/heads.h"
#include "cortado/nn/diagonal_ssm.h"
#include "cortado/nn/norms.h"

namespace cortado {

struct DeltaSettings {
  int64_t heads;            // H: of v, beta, the decay and the state
  int64_t key_heads;        // of q and k; divides H
  int64_t head_dim;         // K
  int64_t value_head_dim;   // V
  int64_t taps;             // of the short convolutions; 0 = none
  bool reflect;             // beta in (0, 2) and not (0, 1): the state's matrices may have negative eigenvalues
  double norm_eps;          // of the norm on the output
  std::string output_gate;  // "none", "silu", "sigmoid"
  int64_t gate_rank = 0;    // of the output gate's map; 0 = full

  int64_t key_width() const { return key_heads * head_dim; }
  int64_t value_width() const { return heads * value_head_dim; }
};

// The settings' common part. K's default is key_share · D/heads, rounded down, and V's value_share · K.
DeltaSettings read_delta_settings(JsonReader& settings, const MixerContext& context, double key_share,
                                  int64_t value_share, const std::string& output_gate);

// q, k = l2(silu(conv(W x))), v = silu(conv(W x)), beta = σ(W x); o by the delta scan; y = W (RMSNorm(o) · act(W_g x)),
// the norm over each head.
// State: "scan_state" [rows,H,K,V]; with convolutions "q_tail", "k_tail", "v_tail" [rows,taps-1,width].
class DeltaMixer : public Mixer {
 public:
  Tensor reference(const Tensor& x) override;
  StateLayout state_layout() const override;
  double flops_per_token(int64_t tokens) const override;

 protected:
  Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) override;

  DeltaMixer(const std::string& name, const DeltaSettings& settings, int64_t dim);

  // Natural log, <= 0: [B,T,H] or [B,T,H,K]; none = no decay.
  virtual std::optional<Tensor> log_decay(const Tensor& x) const = 0;
  const DeltaSettings& settings() const { return settings_; }

 private:
  Tensor beta(const Tensor& x) const;
  Tensor output(const Tensor& x, const Tensor& mixed) const;

  DeltaSettings settings_;
  ConvolvedLinear q_, k_, v_;
  std::shared_ptr<Linear> beta_, gate_, gate_in_, o_;
  std::shared_ptr<RmsNorm> norm_;
};

// The decay of Mamba-2, Gated DeltaNet and KDA: g = -exp(A_log) softplus(logits + dt_bias), float32 at least.
// logits [B,T,H(,K)], a_log [H] or [H,1], dt_bias [H(,K)].
Tensor softplus_decay(const Tensor& logits, const Tensor& a_log, const Tensor& dt_bias);
// log of A uniform in [least, 16], [heads].
Tensor draw_a_log(int64_t heads, double least);

}  // namespace cortado
