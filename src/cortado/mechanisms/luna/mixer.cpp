// luna: tokens attend to a few latents, which attend to the tokens.
#include <cmath>

#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/shared/heads.h"
#include "cortado/mechanisms/shared/latents.h"
#include "cortado/primitives/common.h"
#include "cortado/primitives/gated_scan/op.h"

namespace cortado {
namespace {

// State (causal): "keys", "values" [rows, H, L, d]: Σ_s A_ls k_s and Σ_s A_ls v_s; "position" [rows].
class LunaMixer : public Mixer {
 public:
  LunaMixer(JsonReader& settings, const MixerContext& context)
      : Mixer("luna"),
        heads_(read_heads(settings, context, context.dim, "dim")),
        head_dim_(context.dim / heads_),
        latents_(settings.integer("latents", 1, 65536, 16)),
        causal_(context.causal) {
    const int64_t dim = context.dim;
    register_parameter(latents_p_, "latents", at::empty({latents_, dim}), Role::kEmbedding);
    draw_normal(latents_p_, 1.0);
    p_ = register_module("p", std::make_shared<Linear>(dim, dim));
    q_ = register_module("q", std::make_shared<Linear>(dim, dim));
    k_ = register_module("k", std::make_shared<Linear>(dim, dim));
    v_ = register_module("v", std::make_shared<Linear>(dim, dim));
    if (!causal_) {
      k_latent_ = register_module("k_latent", std::make_shared<Linear>(dim, dim));
      v_latent_ = register_module("v_latent", std::make_shared<Linear>(dim, dim));
    }
    o_ = register_module("o", make_output_linear(dim, dim));
  }

  Tensor reference(const Tensor& x) override {
    const Tensor q = heads(*q_, x), k = heads(*k_, x), v = heads(*v_, x);
    if (causal_) return o_->forward(merge_heads(reference_causal(q, k, v)));
    const Tensor p = heads(*p_, latents_p_).unsqueeze(0);
    const Tensor y = merge_heads(attention_reference(p.expand({x.size(0), -1, -1, -1}), k, v));
    return o_->forward(merge_heads(attention_reference(q, heads(*k_latent_, y), heads(*v_latent_, y))));
  }

  double flops_per_token(int64_t) const override {
    // Scores against the latents, two sums (or means), and a read of each.
    return linear_flops({q_.get(), k_.get(), v_.get(), o_.get()}) +
           10.0 * static_cast<double>(heads_ * latents_ * head_dim_);
  }

 private:
  void declare(StateLayout& layout) const override {
    for (const char* name : {"keys", "values"}) layout.scan(name, {heads_, latents_, head_dim_});
    layout.position();
  }

  Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) override {
    return o_->forward(merge_heads(causal_ ? causal(x, batch, state) : bidirectional(x, batch)));
  }

  // Two sums over the past, Σ_s A_s ⊗ k_s and Σ_s A_s ⊗ v_s, both divided by t.
  Tensor causal(const Tensor& given, const Batch& batch, SequenceState* state) const {
    const NoAutocast in_float32;
    const auto own = q_->weight.scalar_type();  // x may come in autocast's type
    const Tensor x = at::isFloatingType(own) ? given.to(own) : given;
    const auto type = accumulation_type({x});
    const double scale = 1 / std::sqrt(static_cast<double>(head_dim_));
    const Tensor q = heads(*q_, x).to(type), k = heads(*k_, x).to(type);
    const Tensor theta = at::einsum("bthd,hld->bthl", {k, latent_queries().to(type)}) * scale;
    const Tensor a = at::softplus(at::elu(theta) + 1);
    const Tensor positions = batch.positions(x, start_of(state, "position"));
    const Tensor per_token = 1 / (positions + 1).to(type).unsqueeze(2).unsqueeze(3);
    auto [read, keys] = gated_scan(q, a, k, {}, "value", scale, {}, start_of(state, "keys"), batch.cu_seqlens);
    const Tensor weights = at::softmax(read * per_token, -1) * per_token;
    auto [o, values] =
        gated_scan(weights, a, heads(*v_, x), {}, "key", 1.0, {}, start_of(state, "values"), batch.cu_seqlens);
    keep(state, {{"keys", keys}, {"values", values}});
    return o.to(given.scalar_type());
  }

  Tensor bidirectional(const Tensor& x, const Batch& batch) const {
    const Tensor k = heads(*k_, x), v = heads(*v_, x);
    const Tensor y = merge_latent_heads(latents_read(latent_queries(), k, v, batch)).to(x.scalar_type());
    return tokens_read(heads(*q_, x), latent_heads(k_latent_->forward(y), heads_),
                       latent_heads(v_latent_->forward(y), heads_), batch);
  }

  // Eq. 24-26 token by token, with the sums over s <= t computed anew for each t.
  Tensor reference_causal(const Tensor& q, const Tensor& k, const Tensor& v) const {
    const double root = std::sqrt(static_cast<double>(head_dim_));
    const Tensor scores = at::einsum("hld,bshd->bhls", {latent_queries(), k}) / root;
    const Tensor a = (1 + (at::elu(scores) + 1).exp()).log();
    // Above 30 softplus is the identity up to rounding, and its exponential could overflow.
    const Tensor weights = at::where(scores > 30, scores + 1, a);
    std::vector<Tensor> outputs;
    for (int64_t t = 0; t < q.size(1); ++t) {
      const double count = static_cast<double>(t + 1);
      const Tensor past = weights.narrow(3, 0, t + 1);
      const Tensor keys = at::einsum("bhls,bshd->bhld", {past, k.narrow(1, 0, t + 1)}) / count;
      const Tensor values = at::einsum("bhls,bshd->bhld", {past, v.narrow(1, 0, t + 1)}) / count;
      const Tensor b = at::softmax(at::einsum("bhd,bhld->bhl", {q.select(1, t), keys}) / root, -1);
      outputs.push_back(at::einsum("bhl,bhld->bhd", {b, values}));
    }
    return at::stack(outputs, 1);
  }

  Tensor heads(const Linear& map, const Tensor& x) const { return split_heads(map.forward(x), heads_); }
  // W_p P [H,L,d]
  Tensor latent_queries() const { return latent_heads(p_->forward(latents_p_), heads_); }

  int64_t heads_, head_dim_, latents_;
  bool causal_;
  Tensor latents_p_;  // P [L, D]
  std::shared_ptr<Linear> p_, q_, k_, v_, o_;
  std::shared_ptr<Linear> k_latent_, v_latent_;  // bidirectional: maps of the latents' outputs
};

}  // namespace

extern const Mechanism kLuna = {
    .name = "luna",
    .family = "linear attention",
    .paper = "Luna (Ma et al. 2021); Latte (2024) eq. 22-26",
    .equation = "x_t = 1/t sum_l B_tl sum_{s<=t} A_ls v_s, A = softplus(elu(P K') + 1)",
    .state = "2 L D",
    .primitives = {"gated_scan", "running_max"},
    .bidirectional = true,
    .make = construct<LunaMixer>,
    .orderless = true,
};

}  // namespace cortado
