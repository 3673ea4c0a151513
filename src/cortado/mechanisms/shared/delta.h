// The base of the delta rules: DeltaNet, Gated DeltaNet and KDA, which differ in the decay; DeltaProduct, which has
// several steps per token; and Gated DeltaNet-2, whose rates are vectors.
#pragma once

#include "cortado/mechanisms/mixer.h"
#include "cortado/mechanisms/shared/delta_op.h"
#include "cortado/mechanisms/shared/heads.h"
#include "cortado/nn/diagonal_ssm.h"
#include "cortado/nn/gated_silu/op.h"
#include "cortado/nn/norm/norms.h"
#include "cortado/primitives/delta_scan/op.h"

namespace cortado {

// Defaults of the settings: K = floor(key_share · D/H), V = value_share · K.
struct DeltaDefaults {
  double key_share;
  int64_t value_share;
  std::string output_gate;
  bool low_rank = false;  // the output gate's map is a product of two, of rank "gate_rank" (default V)
  bool gate_bias = false;
  bool reflect = false;
  int64_t steps = 0;     // delta steps per token; 0: one, and no setting "steps"
  bool has_beta = true;  // false: the rule has other rates (rate_maps)
};

// q, k = l2(silu(conv(W x))), v = silu(conv(W x)), β = σ(W x); o = delta scan; y = W (RMSNorm(o) · act(W_g x)), normed
// per head. With n steps per token, k, v and β have n times the width, the first step's numbers first.
// State: "scan_state" [rows,H,K,V]; with convolutions "q_tail", "k_tail", "v_tail" [rows,taps-1,width].
class DeltaMixer : public Mixer {
 public:
  Tensor reference(const Tensor& x) override {
    const Projections projected = project(x);
    Qkv in = maps_.reference_of(projected.qkv);
    if (taps_ == 0) in = {in.q * in.q.sigmoid(), in.k * in.k.sigmoid(), in.v * in.v.sigmoid()};
    const auto unit = [&](const Tensor& y, int64_t heads) {
      const Tensor split = split_heads(y, heads);
      return split / (split.square().sum(-1, true) + 1e-6).sqrt();
    };
    const Qkv heads{unit(in.q, key_heads_), unit(in.k, steps_ * key_heads_), split_heads(in.v, steps_ * heads_)};
    return output(read_reference(heads, projected.rates, log_decay(projected.decay)), projected.gate);
  }

  double flops_per_token(int64_t) const override {
    // decay and read at q; per step, read at k and correction
    return weight_flops() + scan_flops(3 + 4 * static_cast<double>(steps_));
  }

  Joining joining() const override { return {std::max<int64_t>(1, taps_), Joining::kDelta}; }

 protected:
  Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) override {
    const Projections in = project(x);
    return output(read(in.qkv, in.rates, log_decay(in.decay), batch, state), in.gate);
  }

  void declare(StateLayout& layout) const override {
    layout.scan("scan_state", {heads_, head_dim_, value_head_dim_});
    maps_.declare(layout);
  }

  DeltaMixer(const std::string& name, JsonReader& settings, const MixerContext& context, const DeltaDefaults& defaults)
      : Mixer(name),
        heads_(settings.integer("heads", 1, kMost, context.heads)),
        key_heads_(settings.integer("key_heads", 1, kMost, heads_)) {
    settings.fail_if(heads_ % key_heads_ != 0, "heads (", heads_, ") is not divisible by key_heads (", key_heads_, ")");
    const int64_t dim = context.dim;
    const auto share =
        static_cast<int64_t>(defaults.key_share * static_cast<double>(dim) / static_cast<double>(heads_));
    settings.fail_if(!settings.has("head_dim") && share < 1, "heads (", heads_, ") are too many for a width of ", dim,
                     "; give head_dim");
    head_dim_ = settings.integer("head_dim", 1, kMost, share);
    value_head_dim_ = settings.integer("value_head_dim", 1, kMost, defaults.value_share * head_dim_);
    taps_ = read_taps(settings, 4);
    if (defaults.steps > 0) steps_ = settings.integer("steps", 1, 64, defaults.steps);
    reflect_ = settings.boolean("reflect", defaults.reflect);
    settings.renamed("epsilon", "norm_eps");
    const double norm_eps = settings.number("norm_eps", 0.0, 1.0, 1e-5);
    output_gate_ = settings.choice("output_gate", {"none", "silu", "sigmoid"}, defaults.output_gate);
    if (defaults.low_rank) gate_rank_ = settings.integer("gate_rank", 1, kMost, value_head_dim_);
    const int64_t key_width = key_heads_ * head_dim_, value_width = heads_ * value_head_dim_;
    maps_.q = ConvolvedLinear::beside(*this, "q", dim, key_width, taps_);
    maps_.k = ConvolvedLinear::beside(*this, "k", dim, steps_ * key_width, taps_);
    maps_.v = ConvolvedLinear::beside(*this, "v", dim, steps_ * value_width, taps_);
    if (defaults.has_beta) beta_ = register_module("beta", std::make_shared<Linear>(dim, steps_ * heads_));
    if (output_gate_ != "none") {
      if (gate_rank_ > 0) gate_in_ = register_module("gate_in", std::make_shared<Linear>(dim, gate_rank_));
      const bool bias = defaults.low_rank && settings.boolean("gate_bias", defaults.gate_bias);
      gate_ = register_module("gate", std::make_shared<Linear>(gate_rank_ > 0 ? gate_rank_ : dim, value_width, bias));
    }
    norm_ = register_module("norm", std::make_shared<RmsNorm>(value_head_dim_, norm_eps));
    o_ = register_module("o", make_output_linear(value_width, dim));
  }

  // The map of x that the decay is computed from; null: no decay.
  virtual const Linear* decay_map() const { return nullptr; }
  // The decay's natural log, <= 0: [B,T,H] or [B,T,H,K], of that map's output; nullopt: no decay.
  virtual OptionalTensor log_decay(const Tensor& mapped) const = 0;

  // The maps of x that the rule's rates are computed from.
  virtual std::vector<const Linear*> rate_maps() const { return {beta_.get()}; }
  // The rule: o [B,T,H,V] of the outputs of the maps of q, k, v [B,T,...] and of the rates.
  virtual Tensor read(const Qkv& mapped, const Tensors& rates, const OptionalTensor& g, const Batch& batch,
                      SequenceState* state) const {
    return delta_read(sizes(), maps_, mapped, rates[0], g, batch, state);
  }
  // The rule's definition: o of q and k [B,T,Hkey,K], of length 1, and v [B,T,H,V]. With n steps, k and v have n times
  // the heads.
  virtual Tensor read_reference(const Qkv& in, const Tensors& rates, const OptionalTensor& g) const {
    return std::get<0>(delta_scan_reference(in.q, in.k, in.v, delta_rate(sizes(), rates[0]), g));
  }

  DeltaHeads sizes() const { return {heads_, key_heads_, head_dim_, value_head_dim_, reflect_, steps_}; }

  int64_t heads_;           // H: heads of v, β, the decay and the state
  int64_t key_heads_;       // heads of q and k; divides H
  int64_t head_dim_;        // K
  int64_t value_head_dim_;  // V
  int64_t gate_rank_ = 0;   // rank of the output gate's map; 0: full
  int64_t steps_ = 1;
  ConvolvedQkv maps_;

 private:
  static constexpr int64_t kMost = 65536;

  // The maps of x; decay and gate are undefined where there is none.
  struct Projections {
    Qkv qkv;
    Tensors rates;
    Tensor decay, gate;
  };
  Projections project(const Tensor& x) const {
    std::vector<const Linear*> maps{&maps_.q.linear(), &maps_.k.linear(), &maps_.v.linear()};
    for (const Linear* map : rate_maps()) maps.push_back(map);
    const auto rates_end = static_cast<int64_t>(maps.size());
    if (decay_map()) maps.push_back(decay_map());
    if (gate_) maps.push_back(gate_in_ ? gate_in_.get() : gate_.get());
    const auto all = forward_all(x, maps);
    const Tensor gate = gate_ ? all.back() : Tensor();
    return {{all[0], all[1], all[2]},
            Tensors(all.begin() + 3, all.begin() + rates_end),
            decay_map() ? all[rates_end] : Tensor(),
            gate_in_ ? gate_->forward(gate) : gate};
  }

  Tensor output(const Tensor& mixed, const Tensor& gate) const {
    const Tensor y = merge_heads(norm_->forward(mixed));
    if (!gate_) return o_->forward(y);
    return o_->forward(output_gate_ == "silu" ? gated_silu(gate, y) : y * at::sigmoid(gate));
  }

  int64_t taps_;             // of the short convolutions; 0: none
  bool reflect_;             // see DeltaHeads
  std::string output_gate_;  // "none", "silu", "sigmoid"
  std::shared_ptr<Linear> beta_, gate_, gate_in_, o_;
  std::shared_ptr<RmsNorm> norm_;
};

// The decay of Mamba-2, Gated DeltaNet and KDA: g = -exp(A_log) softplus(logits + dt_bias), in float32 or float64.
// logits [B,T,H(,K)], a_log [H] or [H,1], dt_bias [H(,K)].
inline Tensor softplus_decay(const Tensor& logits, const Tensor& a_log, const Tensor& dt_bias) {
  return widen(a_log).exp().neg() * at::softplus(widen(logits) + widen(dt_bias));
}
// Initial A_log [heads]: the log of a uniform draw from [least, 16].
inline Tensor draw_a_log(int64_t heads, double least) { return at::empty({heads}).uniform_(least, 16.0).log(); }

}  // namespace cortado
