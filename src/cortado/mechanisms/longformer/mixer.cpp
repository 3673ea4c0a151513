// longformer: a sliding window plus global tokens, the first of the sequence, which every token sees.
#include <cmath>

#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/shared/attention.h"
#include "cortado/mechanisms/shared/interval_attention.h"
#include "cortado/mechanisms/shared/ring/ring.h"

namespace cortado {
namespace {

// The first G tokens of every row: `kept` [rows,G,...], with those that are among this call's x [B,T,...] filled in.
Tensor keep_globals(const Tensor& kept, const Tensor& x, const Tensor& position, const Batch& batch) {
  if (x.size(0) * x.size(1) == 0) return kept;
  const Tensor length = batch.lengths(x), starts = length.cumsum(0) - length;  // packed rows lie one after the other
  const Tensor place = at::arange(kept.size(1), position.options()).unsqueeze(0) - position.unsqueeze(1);
  const Tensor fresh = (place >= 0).logical_and(place < length.unsqueeze(1));
  const Tensor from = (starts.unsqueeze(1) + place).masked_fill(fresh.logical_not(), 0);
  const Tensor taken = x.flatten(0, 1).index_select(0, from.flatten()).unflatten(0, from.sizes());
  return at::where(fresh.unsqueeze(2).unsqueeze(3), taken, kept.to(x.scalar_type()));
}

// softmax(scale · q kᵀ + mask) v by the full matrix; `visible` is bool [T,T].
Tensor masked_softmax(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& visible,
                      const AttentionSettings& settings) {
  const int64_t group = q.size(2) / k.size(2);
  const Tensor keys = k.repeat_interleave(group, 2), values = v.repeat_interleave(group, 2);
  const double scale = settings.scale.value_or(1 / std::sqrt(static_cast<double>(q.size(3))));
  Tensor scores = at::einsum("bthk,bshk->bhts", {q, keys}) * scale;
  if (settings.softcap) scores = *settings.softcap * (scores / *settings.softcap).tanh();
  scores = scores.masked_fill(visible.logical_not(), -std::numeric_limits<double>::infinity());
  return at::einsum("bhts,bshv->bthv", {at::softmax(scores, -1), values});
}

// State: "keys", "values" (the window's ring), "global_keys", "global_values" [rows, G, Hkv, d], "position" [rows].
class LongformerMixer : public AttentionMixer {
 public:
  LongformerMixer(JsonReader& settings, const MixerContext& context)
      : AttentionMixer("longformer", AttentionSettings::read(settings, context), context.dim) {
    settings_.window = settings.integer("window", 1, 1 << 30, 129);
    globals_ = settings.integer("globals", 0, 65536, 1);
    if (settings_.causal || globals_ == 0) return;
    const int64_t dim = context.dim, wide = settings_.width(), narrow = settings_.kv_width();
    q_global_ = register_module("q_global", std::make_shared<Linear>(dim, wide, settings_.bias));
    k_global_ = register_module("k_global", std::make_shared<Linear>(dim, narrow, settings_.bias));
    v_global_ = register_module("v_global", std::make_shared<Linear>(dim, narrow, settings_.bias));
  }

  Tensor reference(const Tensor& x) override {
    const Tensor t = at::arange(x.size(1), x.options().dtype(at::kLong).requires_grad(false));
    const Tensor distance = t.unsqueeze(1) - t.unsqueeze(0), global = (t < globals_).unsqueeze(0);
    Tensor visible = (distance.abs() < *settings_.window).logical_or(global);
    if (settings_.causal) visible = visible.logical_and(distance >= 0);
    const Projected p = project_reference(x);
    Tensor mixed = masked_softmax(p.q, p.k, p.v, visible, settings_);
    if (q_global_) {
      const Projected g = project(x, t.unsqueeze(0), *q_global_, *k_global_, *v_global_);
      const Tensor whole = masked_softmax(g.q, g.k, g.v, at::ones_like(visible), settings_);
      mixed = at::where((t < globals_).unsqueeze(1).unsqueeze(2), whole, mixed);
    }
    return output(mixed, x);
  }

  double flops_per_token(int64_t tokens) const override {
    const int64_t seen = std::min(tokens, *settings_.window + globals_);
    return weight_flops() + 4.0 * static_cast<double>(settings_.width()) * static_cast<double>(seen);
  }

 protected:
  void declare(StateLayout& layout) const override {
    declare_ring(layout, StateLayout::last(*settings_.window - 1));
    layout.position();
    for (const char* name : {"global_keys", "global_values"})
      layout.kept(name, {globals_, settings_.kv_heads, settings_.head_dim});
  }

  Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) override {
    const Tensor positions = batch.positions(x, start_of(state, "position"));
    const Projected p = project(x, batch, state);
    JoinedKeys keys{p.k, p.v, std::nullopt, batch.cu_seqlens};
    if (state) keys = advance(p.k, p.v, batch, *state);
    const int64_t window = *settings_.window;
    const KeyPlaces places = key_places(p.q, keys, batch.cu_seqlens);
    const auto near =
        interval_attention(p.q, keys.k, keys.v,
                           interval(at::maximum(places.first, places.own - (window - 1)),
                                    settings_.causal ? places.own + 1 : at::minimum(places.end, places.own + window)));
    // The global tokens outside the window: those before position t - w + 1.
    const Tensor count = (positions - (window - 1)).clamp(0, globals_);
    Tensor k = p.k, v = p.v, first = places.first;
    if (state) {
      k = state->at("global_keys");
      v = state->at("global_values");
      first = at::zeros_like(count);
      if (batch.cu_seqlens) {
        const Tensor row = at::arange(k.size(0), positions.options()).repeat_interleave(batch.lengths(x));
        first = row.unsqueeze(0) * globals_;
        k = k.flatten(0, 1).unsqueeze(0);
        v = v.flatten(0, 1).unsqueeze(0);
      }
    }
    Tensor mixed = merge_attention(near, interval_attention(p.q, k, v, interval(first, first + count)));
    if (q_global_) mixed = with_global_queries(mixed, x, batch);
    return output(mixed, x);
  }

  JoinedKeys advance(const Tensor& k, const Tensor& v, const Batch& batch, SequenceState& state) override {
    const Tensor position = state.at("position");
    state.at("global_keys") = keep_globals(state.at("global_keys"), k, position, batch);
    state.at("global_values") = keep_globals(state.at("global_values"), v, position, batch);
    return advance_ring(state, k, v, *settings_.window, batch);
  }

 private:
  IntervalOptions interval(const Tensor& begin, const Tensor& end) const {
    return {.begin = begin, .end = end, .scale = settings_.scale, .softcap = settings_.softcap};
  }

  // Replaces the global tokens' rows of `mixed` [B,T,H,d] by attention over the whole sequence.
  Tensor with_global_queries(const Tensor& mixed, const Tensor& x, const Batch& batch) const {
    const Tensor positions = batch.positions(x);
    if (x.size(0) * x.size(1) == 0) return mixed;
    const Projected p = project(x, positions, *q_global_, *k_global_, *v_global_);
    // equal in every row: bidirectional sequences start at 0
    const Tensor tokens = (positions[0] < globals_).nonzero().squeeze(1);
    const KeyPlaces places = key_places(p.q, {p.k, p.v, std::nullopt, batch.cu_seqlens}, batch.cu_seqlens);
    const IntervalOptions whole = interval(places.first.index_select(1, tokens), places.end.index_select(1, tokens));
    return mixed.index_copy(1, tokens, std::get<0>(interval_attention(p.q.index_select(1, tokens), p.k, p.v, whole)));
  }

  int64_t globals_;
  // Projections for the global tokens' own attention, in a bidirectional layer.
  std::shared_ptr<Linear> q_global_, k_global_, v_global_;
};

}  // namespace

extern const Mechanism kLongformer = {
    .name = "longformer",
    .family = "softmax attention",
    .paper = "Longformer (Beltagy et al. 2020) §3.1 eq. 1",
    .equation = "o_t = sum_s softmax_s(q_t.k_s / sqrt d) v_s over t-w < s <= t and s < G",
    .state = "2 (w-1 + globals) Hkv d",
    .bidirectional = true,
    .make = construct<LongformerMixer>,
};

}  // namespace cortado
