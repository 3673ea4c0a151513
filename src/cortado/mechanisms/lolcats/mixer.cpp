// lolcats: the LoLCATs hybrid, softmax over a window and feature-map linear attention under one denominator.
#include "cortado/base/words.h"
#include "cortado/mechanisms/lolcats/feature_mixer.h"
#include "cortado/mechanisms/lolcats/op.h"
#include "cortado/mechanisms/lolcats/parts_op.h"
#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/shared/ring/ring.h"
#include "cortado/mechanisms/shared/sequences.h"
#include "cortado/mechanisms/shared/student.h"
#include "cortado/primitives/operator_case.h"
#include "cortado/primitives/window_attention/op.h"

namespace cortado {
namespace {

// State: "keys", "values" [rows, P, Hkv, d], the pairs in the softmax part's reach (sliding: at most w; terrace: the
// previous and the current block, at most 2w), oldest first, right-aligned; "scan_state" [rows,H,F,d+1], Σ φ_k ⊗ [v, 1]
// of the other pairs; "position" [rows].
class LolcatsMixer : public FeatureMixer, public SoftmaxStudent {
 public:
  LolcatsMixer(JsonReader& settings, const MixerContext& context) : FeatureMixer("lolcats", settings, context) {
    read_scores(settings, rule_);
    rule_.window = settings.integer("window", 1, 1 << 30, 64);
    rule_.layout = choose(settings, "layout", lolcats_layouts(), "terrace");
    rule_.mixture = choose(settings, "mixture", lolcats_mixtures(), "lolcats");
  }

  Tensor reference(const Tensor& x) override {
    const Projected p = project_reference(x);
    return output(lolcats_reference(p.q, for_queries(p.k), for_queries(p.v), phi_q_->forward(p.q), key_features(p.k),
                                    window_factor_, rule_),
                  x);
  }

  std::optional<PairCount> pairs(int64_t tokens) const override {
    const int64_t w = rule_.window, most = rule_.layout == LolcatsLayout::kTerrace ? 2 * w : w;
    return PairCount{static_cast<double>(std::min(tokens, most)), static_cast<double>(phi_k_->width()) / 2};
  }

  double flops_per_token(int64_t tokens) const override {
    const int64_t w = rule_.window;  // a terrace is 1.5 w deep on average
    const double reach = rule_.layout == LolcatsLayout::kSliding ? static_cast<double>(std::min(tokens, w))
                                                                 : std::min<double>(tokens, 1.5 * w);
    return weight_flops() +
           4.0 * static_cast<double>(projections_.width()) * (reach + static_cast<double>(phi_k_->width()));
  }

  std::vector<std::string> memories() const override { return {"window", "state"}; }

  HeldPairs held(const Tensor& x) const override {
    const Tensor time = at::arange(x.size(1), at::kLong), read = time.unsqueeze(1);
    const Tensor left = (lolcats_leaves_at(time, rule_) <= read).to(at::kLong);  // [T,T]
    return {left.masked_fill(time > read, -1).expand({projections_.heads, -1, -1}), {}};
  }

  Lesson lesson(const Tensor& x) const override {
    Projected p = project_reference(x);
    // The learned parameters are float32, whatever the type of the frozen weights.
    for (Tensor* part : {&p.q, &p.k, &p.v}) *part = part->to(window_factor_.scalar_type());
    const WindowAttentionOptions every_key{.scale = rule_.scale, .softcap = rule_.softcap};
    return {std::get<0>(window_attention(p.q, p.k, p.v, every_key)), mix(p)};
  }

  Tensor project_output(const Tensor& mixed, const Tensor& x) const override { return output(mixed, x); }

  int64_t shortest_lesson() const override {
    return lolcats_leaves_at(at::zeros({1}, at::kLong), rule_).item<int64_t>() + 1;
  }

  std::vector<std::string> learned() const override {
    std::vector<std::string> names = {"window_factor"};
    for (const char* map : {"phi_q", "phi_k"}) {
      for (const auto& entry : named_children()[map]->named_parameters()) {
        names.push_back(std::string(map) + "." + entry.key());
      }
    }
    return names;
  }

 private:
  Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) override {
    const int64_t rows = batch.rows(x);
    const OptionalTensor position = start_of(state, "position");
    const Projected p = project(x, batch, state);
    if (!state && !batch.cu_seqlens) return output(mix(p).to(x.scalar_type()), x);
    if (state) {
      if (const auto o = step(p, batch, *state)) return output(*o, x);
    }
    const auto numbers = x.options().dtype(at::kLong).requires_grad(false);
    const auto pack = [&](const Tensor& y) { return batch.cu_seqlens ? y : y.flatten(0, 1).unsqueeze(0); };
    LolcatsCall call;
    call.query_bounds = batch.cu_seqlens ? batch.cu_seqlens->to(numbers) : at::arange(rows + 1, numbers) * x.size(1);
    call.start = position.value_or(at::zeros({rows}, numbers));
    call.q = pack(p.q);
    call.phi_q = phi_q_->forward(call.q);
    call.k = pack(p.k);
    call.v = pack(p.v);
    advance(call, x.size(1), state);  // the longest packed sequence has at most all tokens
    const LolcatsResult result = lolcats_packed(call, window_factor_, rule_);
    if (state) state->at("scan_state") = result.state;
    const Tensor o = result.o.to(x.scalar_type());
    return output(o.view({x.size(0), x.size(1), projections_.heads, projections_.head_dim}), x);
  }

  void declare(StateLayout& layout) const override {
    declare_ring(layout, [rule = rule_](int64_t tokens) {
      return lolcats_kept(at::tensor({tokens}, at::kLong), rule).item<int64_t>();
    });
    layout.scan("scan_state", {projections_.heads, phi_k_->width(), projections_.head_dim + 1});
    layout.position();
  }

  // Whole dense sequences from the zero state, [B,T,H,d].
  Tensor mix(const Projected& p) const {
    const auto [first, keys] = lolcats_far(p.q.size(1), rule_);
    return lolcats_dense(
        {p.q, p.k, p.v, phi_q_->forward(p.q.slice(1, first)), key_features(p.k.narrow(1, 0, keys)), window_factor_},
        rule_);
  }

  // φ_k of the keys, which are repeated to the query heads first.
  Tensor key_features(const Tensor& k) const { return phi_k_->forward(for_queries(k)); }

  // Fills in the linear part's operands for the call, and updates the state's ring. `longest` bounds the number of
  // queries per sequence.
  void advance(LolcatsCall& call, int64_t longest, SequenceState* state) const {
    JoinedKeys joined{call.k, call.v, std::nullopt, call.query_bounds};
    if (state) {
      const PastKeys past{state->at("keys"), state->at("values"), lolcats_kept(call.start, rule_)};
      joined = join_past(past, call.k, call.v, call.query_bounds);
      call.state = state->at("scan_state");
    }
    call.k = joined.k;
    call.v = joined.v;
    call.key_bounds = *joined.cu_seqlens_k;
    const Tensor end = call.start + call.query_bounds.diff(), rows = call.start;
    call.key_start = end - call.key_bounds.diff();
    // The keys that leave the window before the last query. φ_k is computed for these only.
    const Tensor row = sequence_numbers(call.key_bounds, call.k);
    const Tensor position = at::arange(call.k.size(1), rows.options()) +
                            (call.key_start - call.key_bounds.slice(0, 0, -1)).index_select(0, row);
    const Tensor time = lolcats_leaves_at(position, rule_);
    const Tensor leaving = (time < end.index_select(0, row)).nonzero().squeeze(1);
    call.past_phi = key_features(call.k.index_select(1, leaving));
    call.past_v = for_queries(call.v.index_select(1, leaving));
    call.past_time = time.index_select(0, leaving);
    const Tensor counts = at::bincount(row.index_select(0, leaving), {}, rows.size(0));
    call.past_bounds = at::cat({at::zeros({1}, rows.options()), counts.cumsum(0)});
    if (rule_.layout == LolcatsLayout::kTerrace) {
      call.blocks = lolcats_blocks(call.start, call.query_bounds.diff(), rule_).sum().item<int64_t>();
      call.queries_in_block = std::clamp<int64_t>(longest, 1, rule_.window);
    }
    if (!state) return;
    const Tensor kept = lolcats_kept(end, rule_);
    const PastKeys ring = keep_last(joined, rows.size(0) ? kept.max().item<int64_t>() : 0);
    state->at("keys") = *ring.k;
    state->at("values") = *ring.v;
  }

  // Decodes one token per sequence, if all windows are equally long. Otherwise returns nullopt and changes nothing.
  OptionalTensor step(const Projected& p, const Batch& batch, SequenceState& state) const {
    Tensor &keys = state.at("keys"), &values = state.at("values"), &sums = state.at("scan_state");
    if (p.q.size(1) != 1 || !p.q.is_cpu() || !appends(state, p.k, p.v, batch)) return std::nullopt;
    const Tensor& position = state.at("position");
    const Tensor kept = lolcats_kept(position, rule_), leaving = kept + 1 - lolcats_kept(position + 1, rule_);
    const int64_t places = keys.size(1), gone = leaving[0].item<int64_t>();
    if (!(kept == places).all().item<bool>() || !(leaving == gone).all().item<bool>()) return std::nullopt;
    const auto append = [&](const char* name, Tensor& window, const Tensor& added) {
      const Tensor oldest = window.narrow(1, 0, gone);
      window = state.room().append(name, window, added, kRingRoom).narrow(1, gone, places + 1 - gone);
      return oldest;
    };
    const Tensor old_k = append("keys", keys, p.k), old_v = append("values", values, p.v);
    const auto wide = [type = sums.scalar_type()](const Tensor& x) { return x.scalar_type() == type ? x : x.to(type); };
    if (gone > 0) {
      const Tensor v1 = with_ones(for_queries(old_v), sums.scalar_type());
      sums = sums + at::matmul(wide(key_features(old_k)).permute({0, 2, 3, 1}), v1.transpose(1, 2));
    }
    const auto [o, lse, row_max] =
        window_attention(p.q, keys, values, {.scale = rule_.scale, .softcap = rule_.softcap});
    const SoftmaxPart near{wide(o), wide(lse), wide(row_max)};
    const Tensor joined =
        lolcats_join_sums(near, wide(phi_q_->forward(p.q)), sums, wide(window_factor_), rule_.mixture);
    return joined.to(p.v.scalar_type());
  }

  LolcatsRule rule_;
};

constexpr const char* kWindowHelp = "keys of the softmax part";
constexpr const char* kLayoutHelp = "sliding or terrace (blocks)";

// What `cortado bench ops` measures.
OperatorCase lolcats_case() {
  OperatorCase c{.name = "lolcats", .operation = "lolcats"};
  c.note = concat("a window of ", kCaseWindow, " keys, as many features as channels");
  const LolcatsRule rule{.window = kCaseWindow};
  c.inputs = [](const OperatorSizes& s) { return join(qkv(s), {positive(s), positive(s), at::randn({s.heads})}); };
  c.steps = false;
  c.call = [rule](const Tensors& in, const Tensors&) {
    return Tensors{lolcats({in[0], in[1], in[2], in[3], in[4], in[5]}, rule)};
  };
  c.reference = [rule](const Tensors& in) {
    return Tensors{lolcats_reference(in[0], in[1], in[2], in[3], in[4], in[5], rule)};
  };
  c.work = [](const OperatorSizes& s) {
    return Work{4 * state_elements(s) + 4 * channels(s), 0} + window_work(s, kCaseWindow);
  };
  return c;
}

}  // namespace

extern const Mechanism kLolcats = {
    .name = "lolcats",
    .family = "linear attention + window",
    .paper = "LoLCATs (2024); LoLA (2025) eq. 6-7, 13",
    .equation = "o_t = [sum_W g e^(s-c) v_j + sum_(j<W) phi(q_t).phi(k_j) v_j] / [the same without v]",
    .state = "4 w Hkv d + H F (d + 1)",
    .primitives = {"window_attention", "gated_scan"},
    .make = construct<LolcatsMixer>,
    .substitute =
        SoftmaxSubstitute{
            .help = "window softmax and feature maps in one denominator",
            .options =
                {{.name = "window", .help = kWindowHelp, .low = 1, .high = 1 << 30, .fallback = 64},
                 {.name = "layout", .help = kLayoutHelp, .words = names_in(lolcats_layouts()), .fallback = "terrace"},
                 {.name = "mixture",
                  .help = kMixtureHelp,
                  .words = names_in(lolcats_mixtures()),
                  .fallback = "lolcats"},
                 {.name = "feature_map",
                  .help = alternatives(head_feature_maps()),
                  .words = head_feature_maps(),
                  .earlier = {{"exp", "hedgehog_exp"}},
                  .fallback = "lolcats"},
                 {.name = "features",
                  .help = "columns of a feature map's matrix (default: 64, at most the head size)",
                  .low = 1,
                  .high = 65536}},
            .learning_rate = 1e-2,
            .usual = true,
        },
    .memory = MemoryKind{.name = "lolcats",
                         .options = {{.name = "window", .help = "pairs in the window", .high = 1 << 24},
                                     {.name = "layout", .help = kLayoutHelp, .words = names_in(lolcats_layouts())},
                                     {.name = "mixture", .help = kMixtureHelp, .words = names_in(lolcats_mixtures())}},
                         .learned = {{"feature_map", nullptr}, {"features", nullptr}, {"mixture", "lolcats"}}},
    .operation = lolcats_case,
};

}  // namespace cortado
