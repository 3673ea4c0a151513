// abc: attention with bounded-memory control, softmax attention over M slots that hold softmax-weighted means over
// time.
#pragma once

#include "cortado/mechanisms/abc/op.h"
#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/shared/convolved.h"
#include "cortado/mechanisms/shared/heads.h"
#include "cortado/nn/norms.h"

namespace cortado {

extern const Mechanism kAbc;
OperatorCase abc_case();

struct AbcSettings {
  int64_t heads, slots;
  std::optional<Rotary> rotary;  // none: no rotary positions
  bool gate;                     // output: RMSNorm(o) per head, times silu(W_g x)
  int64_t taps;                  // of the short convolutions on q, k, v; 0: none
};

// State: "key_state", "value_state" [rows,H,M,d], "normalizer", "maximum" [rows,H,M], the convolutions' tails, and with
// rotary positions "position" [rows].
class AbcMixer : public Mixer {
 public:
  AbcMixer(const AbcSettings& settings, int64_t dim);

  Tensor reference(const Tensor& x) override;
  StateLayout state_layout() const override;
  double flops_per_token(int64_t tokens) const override;

 private:
  Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) override;

  struct Operands {
    Tensor q, k, v;
  };
  // `project(map)` is one of the map's forms on x.
  template <typename Project>
  Operands operands(const Tensor& positions, const Project& project) const;
  Tensor slot_logits(const Tensor& x) const;
  Tensor output(const Tensor& x, const Tensor& o) const;

  AbcSettings settings_;
  int64_t head_dim_;
  ConvolvedLinear q_, k_, v_;
  std::shared_ptr<Linear> s_, g_, o_;
  std::shared_ptr<RmsNorm> norm_;
};

}  // namespace cortado
