// The base of DeltaNet, Gated DeltaNet and KDA. They differ in the decay.
#pragma once

#include "cortado/mechanisms/mixer.h"
#include "cortado/mechanisms/shared/convolved.h"
#include "cortado/mechanisms/shared/delta_one_token.h"
#include "cortado/mechanisms/shared/heads.h"
#include "cortado/mechanisms/shared/one_token.h"
#include "cortado/mechanisms/shared/part_scan.h"
#include "cortado/nn/autocast.h"
#include "cortado/nn/diagonal_ssm.h"
#include "cortado/nn/gated_silu/op.h"
#include "cortado/nn/norm/norms.h"
#include "cortado/nn/norm/op.h"
#include "cortado/primitives/delta_scan/op.h"

namespace cortado {

// Defaults of the settings: K = floor(key_share · D/H), V = value_share · K.
struct DeltaDefaults {
  double key_share;
  int64_t value_share;
  std::string output_gate;
  bool low_rank = false;  // the output gate's map is a product of two, of rank "gate_rank" (default V)
};

// q, k = l2(silu(conv(W x))), v = silu(conv(W x)), β = σ(W x); o = delta scan; y = W (RMSNorm(o) · act(W_g x)), normed
// per head.
// State: "scan_state" [rows,H,K,V]; with convolutions "q_tail", "k_tail", "v_tail" [rows,taps-1,width].
class DeltaMixer : public Mixer {
 public:
  Tensor reference(const Tensor& x) override {
    const Projections projected = project(x);
    Qkv in = maps_.reference_of(projected.qkv);
    if (taps_ == 0) in = {in.q * in.q.sigmoid(), in.k * in.k.sigmoid(), in.v * in.v.sigmoid()};
    const auto unit = [&](const Tensor& y) {
      const Tensor heads = split_heads(y, key_heads_);
      return heads / (heads.square().sum(-1, true) + 1e-6).sqrt();
    };
    const auto [o, last] = delta_scan_reference(unit(in.q), unit(in.k), split_heads(in.v, heads_), rate(projected),
                                                log_decay(projected.decay));
    return output(o, projected.gate);
  }

  double flops_per_token(int64_t) const override {
    return weight_flops() + scan_flops(7);  // decay, read at k, correction, read at q
  }

  Joining joining() const override { return {std::max<int64_t>(1, taps_), Joining::kDelta}; }

 protected:
  Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) override {
    const Projections in = project(x);
    const OptionalTensor g = log_decay(in.decay);
    if (taps_ > 0 && one_token::takes(in.qkv.q, batch, state) && one_token::takes(in.beta, batch, state)) {
      const DeltaHeads heads{heads_, key_heads_, head_dim_, value_head_dim_, reflect_};
      if (takes_one_token(heads, g)) return output(one_token_of(heads, maps_, in.qkv, in.beta, g, *state), in.gate);
    }
    const Qkv mixed = maps_.convolved(in.qkv, batch, state);
    const auto branch = [&](const Tensor& y, int64_t heads) { return split_heads(taps_ > 0 ? y : at::silu(y), heads); };
    const Tensor q = for_products(l2_normalized(branch(mixed.q, key_heads_))),
                 k = for_products(l2_normalized(branch(mixed.k, key_heads_))),
                 v = for_products(branch(mixed.v, heads_)), beta = rate(in);
    OptionalTensor start = start_of(state, "scan_state");
    if (batch.parts) start = delta_state_before_part(k, v, beta, g, *start, *batch.parts);
    auto [o, last] = delta_scan(q, k, v, beta, g, {}, start, batch.cu_seqlens);
    keep(state, {{"scan_state", last}});
    return output(o, in.gate);
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
    reflect_ = settings.boolean("reflect", false);
    settings.renamed("epsilon", "norm_eps");
    const double norm_eps = settings.number("norm_eps", 0.0, 1.0, 1e-5);
    output_gate_ = settings.choice("output_gate", {"none", "silu", "sigmoid"}, defaults.output_gate);
    if (defaults.low_rank) gate_rank_ = settings.integer("gate_rank", 1, kMost, value_head_dim_);
    const int64_t key_width = key_heads_ * head_dim_, value_width = heads_ * value_head_dim_;
    maps_.q = ConvolvedLinear::beside(*this, "q", dim, key_width, taps_);
    maps_.k = ConvolvedLinear::beside(*this, "k", dim, key_width, taps_);
    maps_.v = ConvolvedLinear::beside(*this, "v", dim, value_width, taps_);
    beta_ = register_module("beta", std::make_shared<Linear>(dim, heads_));
    if (output_gate_ != "none") {
      if (gate_rank_ > 0) gate_in_ = register_module("gate_in", std::make_shared<Linear>(dim, gate_rank_));
      const bool bias = defaults.low_rank && settings.boolean("gate_bias", false);
      gate_ = register_module("gate", std::make_shared<Linear>(gate_rank_ > 0 ? gate_rank_ : dim, value_width, bias));
    }
    norm_ = register_module("norm", std::make_shared<RmsNorm>(value_head_dim_, norm_eps));
    o_ = register_module("o", make_output_linear(value_width, dim));
  }

  // The map of x that the decay is computed from; null: no decay.
  virtual const Linear* decay_map() const { return nullptr; }
  // The decay's natural log, <= 0: [B,T,H] or [B,T,H,K], of that map's output; nullopt: no decay.
  virtual OptionalTensor log_decay(const Tensor& mapped) const = 0;

  int64_t heads_;          // H: heads of v, β, the decay and the state
  int64_t key_heads_;      // heads of q and k; divides H
  int64_t head_dim_;       // K
  int64_t gate_rank_ = 0;  // rank of the output gate's map; 0: full

 private:
  static constexpr int64_t kMost = 65536;

  // The maps of x; decay and gate are undefined where there is none.
  struct Projections {
    Qkv qkv;
    Tensor beta, decay, gate;
  };
  Projections project(const Tensor& x) const {
    std::vector<const Linear*> maps{&maps_.q.linear(), &maps_.k.linear(), &maps_.v.linear(), beta_.get()};
    if (decay_map()) maps.push_back(decay_map());
    if (gate_) maps.push_back(gate_in_ ? gate_in_.get() : gate_.get());
    const auto all = forward_all(x, maps);
    const Tensor gate = gate_ ? all.back() : Tensor();
    return {{all[0], all[1], all[2]}, all[3], decay_map() ? all[4] : Tensor(), gate_in_ ? gate_->forward(gate) : gate};
  }

  // x·rsqrt(Σx² + 1e-6) in float32 or float64: an RMS norm with a constant weight.
  static Tensor l2_normalized(const Tensor& x) {
    const Tensor wide = widen(x);
    const auto size = static_cast<double>(x.size(-1));
    return rms_norm(wide, at::full({x.size(-1)}, 1 / std::sqrt(size), wide.options().requires_grad(false)), 1e-6 / size,
                    1);
  }

  Tensor rate(const Projections& in) const {
    const Tensor beta = widen(in.beta).sigmoid();
    return reflect_ ? beta * 2 : beta;
  }

  Tensor output(const Tensor& mixed, const Tensor& gate) const {
    const Tensor y = merge_heads(norm_->forward(mixed));
    if (!gate_) return o_->forward(y);
    return o_->forward(output_gate_ == "silu" ? gated_silu(gate, y) : y * at::sigmoid(gate));
  }

  int64_t value_head_dim_;   // V
  int64_t taps_;             // of the short convolutions; 0: none
  bool reflect_;             // β in (0, 2) instead of (0, 1), so that the transition may have negative eigenvalues
  std::string output_gate_;  // "none", "silu", "sigmoid"
  ConvolvedQkv maps_;
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
