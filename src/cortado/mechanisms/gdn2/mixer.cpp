// gdn2: Gated DeltaNet-2, the delta rule with one gate for what is erased and one for what is written.
#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/shared/delta.h"
#include "cortado/mechanisms/shared/part_scan.h"
#include "cortado/nn/autocast.h"
#include "cortado/primitives/common.h"
#include "cortado/primitives/dplr_scan/op.h"

namespace cortado {
namespace {

// State: that of DeltaMixer. The decays and the erase gate have the heads of the keys.
class Gdn2Mixer : public DeltaMixer {
 public:
  Gdn2Mixer(JsonReader& settings, const MixerContext& context)
      : DeltaMixer("gdn2", settings, context,
                   {.key_share = 1.0,
                    .value_share = 1,
                    .output_gate = "sigmoid",
                    .low_rank = true,
                    .gate_bias = true,
                    .has_beta = false}) {
    erase_ = register_module("erase", std::make_shared<Linear>(context.dim, key_heads_ * head_dim_));
    write_ = register_module("write", std::make_shared<Linear>(context.dim, heads_ * value_head_dim_));
    decay_in_ = register_module("decay_in", std::make_shared<Linear>(context.dim, gate_rank_));
    decay_ = register_module("decay", std::make_shared<Linear>(gate_rank_, key_heads_ * head_dim_));
    register_parameter(a_log_, "a_log", draw_a_log(key_heads_, 1.0), Role::kDynamics);
    register_parameter(dt_bias_, "dt_bias", initial_step_bias({key_heads_, head_dim_}), Role::kDynamics);
  }

 protected:
  const Linear* decay_map() const override { return decay_in_.get(); }
  OptionalTensor log_decay(const Tensor& mapped) const override {
    return softplus_decay(split_heads(decay_->forward(mapped), key_heads_), a_log_.unsqueeze(-1), dt_bias_);
  }
  std::vector<const Linear*> rate_maps() const override { return {erase_.get(), write_.get()}; }

  // S_t = diag(e^g) S_{t-1} + k (-(b ∘ k) ∘ e^g)ᵀ S_{t-1} + k (w ∘ v)ᵀ: what the first vector reads, k writes.
  Tensor read(const Qkv& mapped, const Tensors& rates, const OptionalTensor& g, const Batch& batch,
              SequenceState* state) const override {
    const Qkv in = delta_operands(sizes(), maps_, mapped, batch, state);
    const Tensor erased = -erase_gate(rates) * in.k * g->exp();
    const Tensor written = (write_gate(rates) * in.v).to(in.v.scalar_type());
    OptionalTensor start = start_of(state, "scan_state");
    if (batch.parts) start = dplr_state_before_part(in.k, written, erased, in.k, *g, *start, *batch.parts);
    const auto [o, last] = dplr_scan(in.q, in.k, written, erased, in.k, *g, {}, start, batch.cu_seqlens);
    keep(state, {{"scan_state", last}});
    return o;
  }

  Tensor read_reference(const Qkv& in, const Tensors& rates, const OptionalTensor& g) const override {
    const auto per_head = [&](const Tensor& x) { return expand_heads(x, heads_); };
    const Tensor q = per_head(in.q), k = per_head(in.k), b = per_head(erase_gate(rates)), w = write_gate(rates),
                 decay = per_head(*g).exp();
    Tensor s = at::zeros({q.size(0), heads_, head_dim_, value_head_dim_}, q.options());
    Tensors read;
    for (int64_t t = 0; t < q.size(1); ++t) {
      const auto column = [t](const Tensor& x) { return x.select(1, t).unsqueeze(3); };  // [B,H,K,1]
      const auto row = [t](const Tensor& x) { return x.select(1, t).unsqueeze(2); };     // [B,H,1,V]
      s = column(decay) * s;
      const Tensor held = (column(b) * column(k) * s).sum(2, true);
      s = s + column(k) * (row(w) * row(in.v) - held);
      read.push_back((column(q) * s).sum(2) / std::sqrt(static_cast<double>(head_dim_)));
    }
    return at::stack(read, 1);
  }

 private:
  Tensor erase_gate(const Tensors& rates) const { return split_heads(delta_rate(sizes(), rates[0]), key_heads_); }
  Tensor write_gate(const Tensors& rates) const { return split_heads(widen(rates[1]).sigmoid(), heads_); }

  std::shared_ptr<Linear> erase_, write_, decay_in_, decay_;
  Tensor a_log_, dt_bias_;  // [Hkey], [Hkey,K]
};

}  // namespace

extern const Mechanism kGdn2 = {
    .name = "gdn2",
    .family = "delta rule",
    .paper = "Gated DeltaNet-2 (Hatamizadeh et al. 2026)",
    .equation = "P = diag(a_t) S_{t-1}, S_t = P + k_t (w_t v_t - P' (b_t k_t))', o_t = S_t' q_t",
    .state = "H K V + (taps-1) H (2 K + V), K = V = d",
    .primitives = {"dplr_scan", "short_conv"},
    .make = construct<Gdn2Mixer>,
};

}  // namespace cortado
