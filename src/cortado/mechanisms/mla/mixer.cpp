// mla: multi-head latent attention, softmax over keys and values that are maps of one low-rank latent per token.
#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/shared/growing_cache.h"
#include "cortado/mechanisms/shared/heads.h"
#include "cortado/nn/norm/norms.h"
#include "cortado/primitives/window_attention/op.h"

namespace cortado {
namespace {

constexpr CacheNames kLatentCache = {"latents"};

struct MlaSettings : WindowAttentionOptions {
  int64_t heads;                  // H
  int64_t rank;                   // R: channels of the latent
  std::optional<int64_t> q_rank;  // of the queries' latent; nullopt: queries are a map of x
  int64_t head_dim;               // N: channels of a head's keys that come from the latent
  int64_t shared_dim;             // P: channels of the key that all heads share
  int64_t value_head_dim;         // V
  std::optional<Rotary> rotary;   // of the shared key and of the queries' last P channels
  double norm_eps;
  bool bias, output_bias;

  static MlaSettings read(JsonReader& settings, const MixerContext& context) {
    MlaSettings read{};
    read.heads = settings.integer("heads", 1, kMost, context.heads);
    const int64_t share = std::max<int64_t>(2, context.dim / read.heads);
    read.rank = settings.integer("rank", 1, kMost, 4 * share);
    read.q_rank = settings.optional_integer("q_rank", 1, kMost);
    read.head_dim = settings.integer("head_dim", 1, kMost, share);
    read.shared_dim = settings.integer("shared_dim", 0, kMost, std::max<int64_t>(4, share / 4 * 2));
    read.value_head_dim = settings.integer("value_head_dim", 1, kMost, read.head_dim);
    read.rotary = read_rotary(settings, context, read.shared_dim, context.rotary);
    if (read.shared_dim == 0) read.rotary.reset();
    read_scores(settings, static_cast<WindowAttentionOptions&>(read));
    read.norm_eps = settings.number("norm_eps", 0.0, 1.0, 1e-6);
    read.bias = settings.boolean("bias", false);
    read.output_bias = settings.boolean("output_bias", read.bias);
    read.causal = context.causal;
    if (!read.scale) read.scale = 1 / std::sqrt(static_cast<double>(read.query_dim()));
    return read;
  }

  int64_t query_dim() const { return head_dim + shared_dim; }
  int64_t cached() const { return rank + shared_dim; }  // numbers per token

 private:
  static constexpr int64_t kMost = 65536;
};

// State: the cache "latents" [rows, capacity, 1, R + P], each token's latent c and shared key, with "position" and
// "used" (shared/growing_cache.h).
class MlaMixer : public Mixer {
 public:
  MlaMixer(JsonReader& settings, const MixerContext& context)
      : Mixer("mla"), settings_(MlaSettings::read(settings, context)) {
    const int64_t dim = context.dim, heads = settings_.heads, rank = settings_.rank;
    const int64_t queries = heads * settings_.query_dim();
    if (settings_.q_rank) {
      q_down_ = register_module("q_down", std::make_shared<Linear>(dim, *settings_.q_rank, settings_.bias));
      q_norm_ = register_module("q_norm", std::make_shared<RmsNorm>(*settings_.q_rank, settings_.norm_eps));
    }
    q_ = register_module("q", std::make_shared<Linear>(settings_.q_rank.value_or(dim), queries));
    down_ = register_module("down", std::make_shared<Linear>(dim, settings_.cached(), settings_.bias));
    norm_ = register_module("norm", std::make_shared<RmsNorm>(rank, settings_.norm_eps));
    register_parameter(k_up_, "k_up", at::empty({heads, settings_.head_dim, rank}), Role::kMatrix);
    register_parameter(v_up_, "v_up", at::empty({heads, settings_.value_head_dim, rank}), Role::kMatrix);
    lecun_normal(k_up_, rank);
    lecun_normal(v_up_, rank);
    o_ = register_module("o", make_output_linear(heads * settings_.value_head_dim, dim, settings_.output_bias));
  }

  // k_s = [W_k c_s, p_s], v_s = W_v c_s per head; o_t = Σ_{s≤t} softmax_s(q_t·k_s) v_s.
  Tensor reference(const Tensor& x) override {
    const Projected p = project(x, Batch{}.positions(x));
    const Tensor c = p.latent.narrow(3, 0, settings_.rank).expand({-1, -1, settings_.heads, -1});
    const Tensor shared =
        p.latent.narrow(3, settings_.rank, settings_.shared_dim).expand({-1, -1, settings_.heads, -1});
    const Tensor k = at::cat({at::einsum("bthr,hnr->bthn", {c, k_up_}), shared}, 3);
    const Tensor v = at::einsum("bthr,hvr->bthv", {c, v_up_});
    return output(std::get<0>(window_attention_reference(p.q, k, v, settings_)));
  }

  double flops_per_token(int64_t tokens) const override {
    const auto ups = static_cast<double>(k_up_.numel() + v_up_.numel());
    const double pair = 2.0 * static_cast<double>(settings_.cached() + settings_.rank);
    return weight_flops() + 2.0 * ups + pair * static_cast<double>(settings_.heads * tokens);
  }

 private:
  struct Projected {
    Tensor q, latent;  // [B,T,H,N+P] and [B,T,1,R+P]; the last P channels of both are rotated
  };

  Projected project(const Tensor& x, const Tensor& positions) const {
    const Tensor from = q_down_ ? q_norm_->forward(q_down_->forward(x)) : x;
    Tensor q = split_heads(q_->forward(from), settings_.heads);
    const Tensor down = down_->forward(x).unsqueeze(2);
    const Tensor c = norm_->forward(down.narrow(3, 0, settings_.rank));
    Tensor shared = down.narrow(3, settings_.rank, settings_.shared_dim);
    if (settings_.rotary) {
      Tensor last = q.narrow(3, settings_.head_dim, settings_.shared_dim).contiguous();
      shared = shared.contiguous();
      rotate_queries_and_keys(last, shared, positions, settings_.rotary);
      q = at::cat({q.narrow(3, 0, settings_.head_dim), last}, 3);
    }
    return {q, at::cat({c, shared}, 3)};
  }

  Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) override {
    const Projected p = project(x, batch.positions(x, start_of(state, "position")));
    JoinedKeys joined{p.latent, p.latent, std::nullopt, batch.cu_seqlens};
    if (state) joined = advance_cache(*state, kLatentCache, p.latent, p.latent.narrow(3, 0, 0), batch);
    WindowAttentionOptions options = settings_;
    options.cu_seqlens = batch.cu_seqlens;
    return output(absorbs(p.q.size(1), joined.k.size(1)) ? attend_latents(p.q, joined, options)
                                                         : attend_heads(p.q, joined, options));
  }

  void declare(StateLayout& layout) const override { declare_cache(layout, kLatentCache, {1, settings_.cached()}); }

  // Whether `queries` queries of `keys` keys take fewer operations with the maps W_k and W_v absorbed into the queries
  // and the output.
  bool absorbs(int64_t queries, int64_t keys) const {
    const int64_t map = settings_.rank * (settings_.head_dim + settings_.value_head_dim);
    const int64_t latents = settings_.cached() + settings_.rank;
    const int64_t heads = settings_.query_dim() + settings_.value_head_dim;
    return queries * map + queries * keys * latents < keys * map + queries * keys * heads;
  }

  // The keys and values of every head are computed: for many queries.
  Tensor attend_heads(const Tensor& q, const JoinedKeys& joined, const WindowAttentionOptions& options) const {
    const Tensor latent = joined.k.to(q.scalar_type()).squeeze(2), c = latent.narrow(2, 0, settings_.rank);
    const Tensor shared = latent.narrow(2, settings_.rank, settings_.shared_dim).unsqueeze(2);
    const auto per_head = [&](const Tensor& up) {
      return split_heads(at::linear(c, up.to(c.scalar_type()).flatten(0, 1)), settings_.heads);
    };
    const Tensor k = at::cat({per_head(k_up_), shared.expand({-1, -1, settings_.heads, -1})}, 3);
    return attend_joined(q, {k, per_head(v_up_), joined.first_key, joined.cu_seqlens_k}, options);
  }

  // One key and value for all heads, the cache itself: q_t·W_k c_s = (W_kᵀ q_t)·c_s, and W_v leaves the sum.
  Tensor attend_latents(const Tensor& q, const JoinedKeys& joined, const WindowAttentionOptions& options) const {
    const auto type = q.scalar_type();
    const Tensor plain = q.narrow(3, 0, settings_.head_dim),
                 last = q.narrow(3, settings_.head_dim, settings_.shared_dim);
    const Tensor wide = at::cat({at::einsum("bthn,hnr->bthr", {plain, k_up_.to(type)}), last}, 3);
    const Tensor c = joined.k.narrow(3, 0, settings_.rank);
    const Tensor o = attend_joined(wide, {joined.k, c, joined.first_key, joined.cu_seqlens_k}, options).to(type);
    return at::einsum("bthr,hvr->bthv", {o, v_up_.to(type)});
  }

  Tensor output(const Tensor& mixed) const { return o_->forward(merge_heads(mixed)); }

  MlaSettings settings_;
  std::shared_ptr<Linear> q_down_, q_, down_, o_;
  std::shared_ptr<RmsNorm> q_norm_, norm_;
  Tensor k_up_, v_up_;  // [H,N,R], [H,V,R]
};

}  // namespace

extern const Mechanism kMla = {
    .name = "mla",
    .family = "softmax attention",
    .paper = "DeepSeek-V2 (2024) §2.1; Kimi Linear (Moonshot AI 2025)",
    .equation = "o_t = sum_{s<=t} softmax_s(q_t.[W_k c_s, p_s]) W_v c_s, c_s = RMSNorm(W_c x_s)",
    .state = "T (rank + shared_dim)",
    .primitives = {"window_attention"},
    .bidirectional = true,
    .make = construct<MlaMixer>,
};

}  // namespace cortado
