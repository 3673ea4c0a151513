// rwkv6: linear attention with data-dependent decays and a bonus for the current token (Finch).
#pragma once

#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/shared/heads.h"

namespace cortado {

extern const Mechanism kRwkv6;

struct Rwkv6Settings {
  int64_t heads;
  int64_t key_dim, value_dim;    // of all heads together
  int64_t mix_rank, decay_rank;  // of the low-rank maps
  double norm_eps;
};

// State: "shift" [rows,1,D], "scan_state" [rows,H,K,V].
class Rwkv6Mixer : public Mixer {
 public:
  Rwkv6Mixer(const Rwkv6Settings& settings, const MixerContext& context);

  Tensor reference(const Tensor& x) override;
  StateLayout state_layout() const override;
  double flops_per_token(int64_t tokens) const override;

 private:
  Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) override;

  struct Operands {
    Tensor r, k, v, g;  // g: natural log of the decay
    Tensor gate;
  };
  void register_mixes(const MixerContext& context);
  Operands operands(const Tensor& x, const Tensor& before) const;
  Tensor output(const Tensor& o, const Tensor& gate) const;

  Rwkv6Settings settings_;
  int64_t dim_;
  std::shared_ptr<Linear> r_, k_, v_, g_, o_;
  Tensor mix_x_, mix_;              // [D], [5,D] for r, w, k, v, g
  Tensor mix_down_, mix_up_;        // [5·rank,D], [5,rank,D]
  Tensor decay_, bonus_;            // [key_dim], [H,K]
  Tensor decay_down_, decay_up_;    // [rank,D], [key_dim,rank]
  Tensor norm_weight_, norm_bias_;  // [value_dim]
};

}  // namespace cortado
