#include "cortado/mechanisms/lolcats/op.h"

#include "cortado/mechanisms/lolcats/parts_op.h"
#include "cortado/primitives/gated_scan/op.h"
#include "cortado/primitives/window_attention/op.h"

namespace cortado {
namespace {

constexpr const char* kLolcatsName = "lolcats";

WindowAttentionOptions score_options(const LolcatsRule& rule) { return {.scale = rule.scale, .softcap = rule.softcap}; }

SoftmaxPart sliding_part(const LolcatsCall& call, const LolcatsRule& rule) {
  WindowAttentionOptions options = score_options(rule);
  options.window = rule.window;
  options.cu_seqlens = call.query_bounds;
  options.cu_seqlens_k = call.key_bounds;
  const auto [o, lse, row_max] = window_attention(call.q, call.k, call.v, options);
  return {o, lse, row_max};
}

// Gathers x [1,T,...] at `places` [S,n]: [S,n,...].
Tensor gather_tokens(const Tensor& x, const Tensor& places) {
  return x.squeeze(0).index_select(0, places.flatten()).unflatten(0, {-1, places.size(1)});
}

// Every block with a query, of every sequence, becomes one row of a batch: its last n queries against the 2w keys up to
// the last of them. Keys before the previous block are hidden by first_key, later keys by causality. Entries without a
// query or key repeat another one; the results of such queries are not used, and such keys are hidden. Surplus blocks
// repeat others too.
SoftmaxPart terrace_part(const LolcatsCall& call, const LolcatsRule& rule) {
  const int64_t w = rule.window, queries = call.queries_in_block;
  const Tensor &start = call.start, lengths = call.query_bounds.diff();
  const Tensor first_block = at::floor_divide(start, w), blocks = lolcats_blocks(start, lengths, rule);
  const Tensor after = blocks.cumsum(0), before = after - blocks;
  const Tensor count = at::arange(call.blocks, start.options());  // [S]
  // The sequence that each block belongs to.
  const Tensor row =
      at::searchsorted(after, count, /*out_int32=*/false, /*right=*/true).clamp_max(start.sym_size(0) - 1);
  const auto of_row = [&](const Tensor& x) { return x.index_select(0, row); };
  const Tensor begin = (of_row(first_block - before) + count) * w;     // the block's first position
  const Tensor end = at::minimum(begin + w, of_row(start + lengths));  // the position after its last query
  const auto last_places = [&](const Tensor& bounds, const Tensor& first_position, int64_t length) {
    const Tensor position = end.unsqueeze(1) + at::arange(-length, 0, row.options());
    const Tensor low = of_row(bounds.slice(0, 0, -1)).unsqueeze(1), high = of_row(bounds.slice(0, 1)).unsqueeze(1) - 1;
    const Tensor place = position + low - of_row(first_position).unsqueeze(1);
    return at::minimum(at::maximum(place, low), high);
  };
  const Tensor keys = last_places(call.key_bounds, call.key_start, 2 * w);
  WindowAttentionOptions options = score_options(rule);
  options.first_key = (at::maximum(begin - w, of_row(call.key_start)) - (end - 2 * w)).clamp(0, 2 * w - 1);
  const auto [o, lse, row_max] = window_attention(gather_tokens(call.q, last_places(call.query_bounds, start, queries)),
                                                  gather_tokens(call.k, keys), gather_tokens(call.v, keys), options);
  // Puts the results back into the queries' order.
  const Tensor query_row = sequence_numbers(call.query_bounds, call.q);
  const auto of_query = [&](const Tensor& x) { return x.index_select(0, query_row); };
  const Tensor position =
      at::arange(call.q.sym_size(1), row.options()) + of_query(start - call.query_bounds.slice(0, 0, -1));
  const Tensor block = of_query(before - first_block) + at::floor_divide(position, w);
  const Tensor place = (block + 1) * queries + position - end.index_select(0, block);
  const auto back = [&](const Tensor& x) { return x.flatten(0, 1).index_select(0, place).unsqueeze(0); };
  return {back(o), back(lse), back(row_max)};
}

// The linear part: Σ φ_q·φ_k [v, 1] over the keys that left the window before each query. Keys and queries form one
// list of events ordered by time, keys before queries. One scan over this list writes at keys and reads at queries.
TensorTuple<2> linear_part(const LolcatsCall& call, at::ScalarType type) {
  const auto numbers = call.start.options();
  const Tensor query_row = sequence_numbers(call.query_bounds, call.q);
  const Tensor query_time = at::arange(call.q.sym_size(1), numbers) +
                            (call.start - call.query_bounds.slice(0, 0, -1)).index_select(0, query_row);
  const Tensor row = at::cat({sequence_numbers(call.past_bounds, call.past_v), query_row});
  const Tensor time = at::cat({call.past_time * 2, query_time * 2 + 1});
  const Tensor by_time = at::argsort(time, /*stable=*/true, 0, false);
  const Tensor by_row = at::argsort(row.index_select(0, by_time), /*stable=*/true, 0, false);
  const Tensor order = by_time.index_select(0, by_row);
  const Tensor place = at::argsort(order, /*stable=*/true, 0, false);  // index of each event in that order

  const Tensor v1 = with_ones(call.past_v, type), phi_q = call.phi_q.to(type), phi_k = call.past_phi.to(type);
  const auto nothing = [](const Tensor& like, const Tensor& length) {
    return at::zeros_symint({1, length.sym_size(1), like.sym_size(2), like.sym_size(3)}, like.options());
  };
  const auto events = [&](const Tensor& past, const Tensor& queries) {
    return at::cat({past, queries}, 1).index_select(1, order);
  };
  auto [sums, state] =
      gated_scan(events(nothing(phi_q, phi_k), phi_q), events(phi_k, nothing(phi_k, phi_q)),
                 events(v1, nothing(v1, phi_q)), {}, "key", 1.0, {}, call.state, call.past_bounds + call.query_bounds);
  const Tensor reads = place.narrow_symint(0, phi_k.sym_size(1), phi_q.sym_size(1));
  return {sums.index_select(1, reads), state};
}

// A call on whole sequences from the zero state, without the linear part's operands.
LolcatsCall call_from_zero(const Tensor& q, const Tensor& k, const Tensor& v, const LolcatsRule& rule,
                           const OptionalTensor& cu_seqlens) {
  const c10::SymInt batch = q.sym_size(0), tokens = q.sym_size(1), rows = packed_rows(kLolcatsName, cu_seqlens, batch);
  const auto numbers = q.options().dtype(at::kLong).requires_grad(false);
  const auto pack = [&](const Tensor& x) { return cu_seqlens ? x : x.flatten(0, 1).unsqueeze(0); };
  LolcatsCall call;
  call.q = pack(q);
  call.k = pack(k);
  call.v = pack(v);
  call.query_bounds = cu_seqlens ? cu_seqlens->to(q.device(), at::kLong) : at::arange(batch + 1, numbers) * tokens;
  call.key_bounds = call.query_bounds;
  call.start = at::zeros_symint({rows}, numbers);
  call.key_start = call.start;
  call.blocks = cu_seqlens ? tokens / rule.window + rows : batch * ((tokens + rule.window - 1) / rule.window);
  if (tokens == 0) call.blocks = 0;
  call.queries_in_block = rule.window;
  return call;
}

// Checks everything except the features' lengths. Returns the output's number of heads.
c10::SymInt check_lolcats(const Tensor& q, const Tensor& k, const Tensor& v, const c10::SymInt& feature_heads,
                          const Tensor& window_factor, const LolcatsRule& rule, const OptionalTensor& cu_seqlens) {
  fail_input_if(rule.window < 1, "[lolcats] window must be at least 1, got ", rule.window);
  Sizes near(kLolcatsName, cu_seqlens, {{"v", v, "BThV"}, {"k", k, "BThK"}, {"q", q, "BTqK"}});
  near.expect({{"window_factor", window_factor, "*"}});
  const c10::SymInt heads = output_heads(kLolcatsName, near['H'], feature_heads);
  expect_shape(kLolcatsName, "window_factor", window_factor, {heads});
  return heads;
}

// φ_q·φ_k [v, 1] for a dense batch from the zero state: query i sees keys 0..i.
Tensor sliding_sums(const Tensor& phi_q, const Tensor& phi_k, const Tensor& v1) {
  return std::get<0>(gated_scan(phi_q, phi_k, v1, {}, "key", 1.0));
}

// Query i sees the keys of its own block of w and of all earlier blocks, by cumulative sums over the blocks.
Tensor terrace_sums(const Tensor& phi_q, const Tensor& phi_k, const Tensor& v1, int64_t w, bool fused) {
  const int64_t queries = phi_q.size(1), padding = phi_k.size(1) - queries;
  const int64_t heads = std::max({phi_q.size(2), phi_k.size(2), v1.size(2)});
  const auto blocks = [&](const Tensor& x) {  // [B,H,n,w,·]
    return expand_heads(x, heads).transpose(1, 2).unflatten(2, {-1, w});
  };
  const Tensor padded = padding == 0 ? phi_q : at::constant_pad_nd(phi_q, {0, 0, 0, 0, 0, padding});
  const Tensor q = blocks(padded), k = blocks(phi_k), values = blocks(v1);
  const Tensor sums =
      fused ? lolcats_block_sums(q, k, values) : at::matmul(q, at::matmul(k.transpose(3, 4), values).cumsum(2));
  return sums.flatten(2, 3).narrow(2, 0, queries).transpose(1, 2);
}

// Softmax part of dense sequences from the zero state with more than two whole blocks. The first two blocks see
// everything before them. Each later block is one row of a batch, with a view of its own and the previous block's keys.
SoftmaxPart terraces_of_whole_blocks(const Tensor& q, const Tensor& k, const Tensor& v, const LolcatsRule& rule) {
  const int64_t w = rule.window, batch = q.size(0), rest = q.size(1) - 2 * w;
  const WindowAttentionOptions options = score_options(rule);
  const auto early = [&](const Tensor& x) { return x.narrow(1, 0, 2 * w); };
  const auto pairs = [&](const Tensor& x) {
    return x.narrow(1, w, rest + w).unfold(1, 2 * w, w).permute({0, 1, 4, 2, 3}).flatten(0, 1);
  };
  const Tensor queries = q.narrow(1, 2 * w, rest).unflatten(1, {rest / w, w}).flatten(0, 1);
  const auto [o, lse, row_max] = window_attention(early(q), early(k), early(v), options);
  const auto [later_o, later_lse, later_max] = window_attention(queries, pairs(k), pairs(v), options);
  const auto both = [&](const Tensor& first, const Tensor& later) {
    return at::cat({first, later.unflatten(0, {batch, rest / w}).flatten(1, 2)}, 1);
  };
  return {both(o, later_o), both(lse, later_lse), both(row_max, later_max)};
}

SoftmaxPart dense_softmax_part(const Tensor& q, const Tensor& k, const Tensor& v, const LolcatsRule& rule) {
  const int64_t batch = q.size(0), tokens = q.size(1), w = rule.window;
  const bool sliding = rule.layout == LolcatsLayout::kSliding;
  // Gradients through overlapping views would be slow.
  const bool constant = !at::GradMode::is_enabled() || !(q.requires_grad() || k.requires_grad() || v.requires_grad());
  if (!sliding && constant && tokens > 2 * w && tokens % w == 0) return terraces_of_whole_blocks(q, k, v, rule);
  const LolcatsCall call = call_from_zero(q, k, v, rule, {});
  SoftmaxPart near = sliding ? sliding_part(call, rule) : terrace_part(call, rule);
  for (Tensor* part : {&near.o, &near.lse, &near.row_max}) *part = part->squeeze(0).unflatten(0, {batch, tokens});
  return near;
}

// In the order of the schema.
struct LolcatsArguments {
  const Tensor &q, &k, &v, &phi_q, &phi_k, &window_factor;
  int64_t window;
  std::string_view layout, mixture;
  std::optional<double> scale;
  const OptionalTensor& cu_seqlens;
  std::optional<double> softcap;
};
using LolcatsSignature = Tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                const Tensor&, int64_t, std::string_view, std::string_view, std::optional<double>,
                                const OptionalTensor&, std::optional<double>);

Tensor lolcats_operator(const LolcatsArguments& in) {
  const LolcatsRule rule{in.window, value_of(lolcats_layouts(), in.layout, "[lolcats] layout"),
                         value_of(lolcats_mixtures(), in.mixture, "[lolcats] mixture"), in.scale, in.softcap};
  return lolcats({in.q, in.k, in.v, in.phi_q, in.phi_k, in.window_factor, in.cu_seqlens}, rule);
}

}  // namespace

const Words<LolcatsLayout>& lolcats_layouts() {
  static const Words<LolcatsLayout> words = {{"sliding", LolcatsLayout::kSliding},
                                             {"terrace", LolcatsLayout::kTerrace}};
  return words;
}

const Words<LolcatsMixture>& lolcats_mixtures() {
  static const Words<LolcatsMixture> words = {
      {"lolcats", LolcatsMixture::kLolcats}, {"gated", LolcatsMixture::kGated}, {"plain", LolcatsMixture::kPlain}};
  return words;
}

Tensor lolcats_leaves_at(const Tensor& positions, const LolcatsRule& rule) {
  if (rule.layout == LolcatsLayout::kSliding) return positions + rule.window;
  return (at::floor_divide(positions, rule.window) + 2) * rule.window;
}

Tensor lolcats_kept(const Tensor& positions, const LolcatsRule& rule) {
  if (rule.layout == LolcatsLayout::kSliding) return positions.clamp_max(rule.window);
  const Tensor first = (at::floor_divide(positions - 1, rule.window) - 1) * rule.window;
  return positions - first.clamp_min(0);
}

Tensor lolcats_blocks(const Tensor& start, const Tensor& lengths, const LolcatsRule& rule) {
  const auto block_of = [&](const Tensor& position) { return at::floor_divide(position, rule.window); };
  return (block_of(start + lengths - 1) - block_of(start) + 1).masked_fill(lengths == 0, 0);
}

Tensor join_linear(const SoftmaxPart& near, const Tensor& far, const Tensor& window_factor, LolcatsMixture mixture) {
  const c10::SymInt values = near.o.sym_size(3);
  const Tensor sums = far.narrow_symint(3, 0, values), total = far.narrow_symint(3, values, 1);
  const Tensor lse = near.lse.unsqueeze(3), factor = window_factor.unsqueeze(1);  // [H,1]
  if (mixture == LolcatsMixture::kLolcats) {
    const Tensor weight = factor.sigmoid() * (lse - near.row_max.unsqueeze(3)).exp();
    return (weight * near.o + sums) / (weight + total);
  }
  const Tensor empty = total == 0;
  Tensor advantage = total.masked_fill(empty, 1).log() - lse;
  // log((1 - g) / g) = -factor
  if (mixture == LolcatsMixture::kGated) advantage = advantage - factor;
  const Tensor share = advantage.sigmoid().masked_fill(empty, 0);
  return near.o + share * (divide_or_zero(sums, total) - near.o);
}

LolcatsResult lolcats_packed(const LolcatsCall& call, const Tensor& window_factor, const LolcatsRule& rule) {
  const auto type = accumulation_type({call.q, call.k, call.v, call.phi_q, call.past_phi, window_factor, call.state});
  LolcatsCall wide = call;
  wide.v = call.v.to(type);  // both parts stay in this type until they are joined
  SoftmaxPart near = rule.layout == LolcatsLayout::kSliding ? sliding_part(wide, rule) : terrace_part(wide, rule);
  auto [far, state] = linear_part(wide, type);
  const c10::SymInt heads = window_factor.sym_size(0);
  for (Tensor* part : {&near.o, &near.lse, &near.row_max, &far}) *part = expand_heads(*part, heads);
  return {join_linear(near, far, window_factor.to(type), rule.mixture), state};
}

LolcatsFar lolcats_far(int64_t tokens, const LolcatsRule& rule) {
  const int64_t w = rule.window;
  if (rule.layout == LolcatsLayout::kSliding) return {std::min(tokens, w), std::max<int64_t>(tokens - w, 0)};
  return {std::min(tokens, 2 * w), std::max<int64_t>((tokens + w - 1) / w - 2, 0) * w};
}

namespace {

// `fused` allows the mechanism's own kernels where they apply; they are not operators and cannot be traced.
Tensor dense_form(const LolcatsInputs& in, const LolcatsRule& rule, bool fused) {
  const NoAutocast as_given;
  const auto& [q, k, v, phi_q, phi_k, window_factor, cu_seqlens] = in;
  const int64_t batch = q.size(0), tokens = q.size(1);
  const int64_t heads =
      check_lolcats(q, k, v, std::max(phi_q.size(2), phi_k.size(2)), window_factor, rule, {}).expect_int();
  const auto [first, keys] = lolcats_far(tokens, rule);
  expect_shape(kLolcatsName, "phi_q", phi_q, {batch, tokens - first, -1, -1});
  expect_shape(kLolcatsName, "phi_k", phi_k, {batch, keys, -1, phi_q.size(3)});
  const auto type = accumulation_type({q, k, v, phi_q, phi_k, window_factor});
  const bool sliding = rule.layout == LolcatsLayout::kSliding;
  SoftmaxPart near = dense_softmax_part(q, k, v.to(type), rule);
  for (Tensor* part : {&near.o, &near.lse, &near.row_max}) *part = expand_heads(*part, heads);
  if (keys == 0) return near.o;
  const Tensor v1 = with_ones(v.narrow(1, 0, keys), type);
  const Tensor far = expand_heads(sliding ? sliding_sums(phi_q.to(type), phi_k.to(type), v1)
                                          : terrace_sums(phi_q.to(type), phi_k.to(type), v1, rule.window, fused),
                                  heads);
  const auto later = [first = first](const Tensor& x) { return x.slice(1, first); };
  const SoftmaxPart rest{later(near.o), later(near.lse), later(near.row_max)};
  const Tensor joined = fused ? lolcats_join(rest, far, window_factor, rule.mixture)
                              : join_linear(rest, far, window_factor.to(type), rule.mixture);
  return at::cat({near.o.narrow(1, 0, first), joined}, 1);
}

}  // namespace

Tensor lolcats(const LolcatsInputs& in, const LolcatsRule& given) {
  const NoAutocast as_given;
  const auto& [q, k, v, phi_q, phi_k, window_factor, cu_seqlens] = in;
  LolcatsRule rule = given;
  const ScanHeads far = check_qkv(kLolcatsName, {"phi_q", phi_q}, {"phi_k", phi_k}, v);
  const c10::SymInt heads = check_lolcats(q, k, v, far.out, window_factor, rule, cu_seqlens);
  // A window longer than the sequence is cut to its length: it sees no more, and would take memory.
  if (const auto tokens = q.sym_size(1).maybe_as_int()) rule.window = std::clamp<int64_t>(*tokens, 1, rule.window);
  // Whole sequences of known sizes need no list of events. Uses operators only, because lolcats is one itself and may
  // be traced.
  const auto known = [](const Tensor& x) { return !x.unsafeGetTensorImpl()->has_symbolic_sizes_strides(); };
  const bool dense = !cu_seqlens && known(q) && known(k) && known(v) && known(phi_q) && known(phi_k);
  const LolcatsFar parts = dense ? lolcats_far(q.size(1), rule) : LolcatsFar{};
  if (parts.keys > 0 && q.size(0) > 0) {
    LolcatsInputs far = in;
    far.phi_q = phi_q.slice(1, parts.first_query);
    far.phi_k = phi_k.slice(1, 0, parts.keys);
    return dense_form(far, rule, /*fused=*/false).to(v.scalar_type());
  }
  LolcatsCall call = call_from_zero(q, k, v, rule, cu_seqlens);
  const auto pack = [&](const Tensor& x) { return cu_seqlens ? x : x.flatten(0, 1).unsqueeze(0); };
  const Tensor row = sequence_numbers(call.key_bounds, call.k);
  const Tensor position =
      at::arange(call.k.sym_size(1), row.options()) - call.key_bounds.slice(0, 0, -1).index_select(0, row);
  call.phi_q = pack(phi_q);
  call.past_phi = pack(phi_k);
  call.past_v = call.v;
  call.past_bounds = call.key_bounds;
  call.past_time = lolcats_leaves_at(position, rule);
  const LolcatsResult result = lolcats_packed(call, window_factor, rule);
  return result.o.view_symint({q.sym_size(0), q.sym_size(1), heads, v.sym_size(3)}).to(v.scalar_type());
}

Tensor lolcats_dense(const LolcatsInputs& in, const LolcatsRule& rule) { return dense_form(in, rule, /*fused=*/true); }

TORCH_LIBRARY_FRAGMENT(cortado, m) {
  m.def(
      "lolcats(Tensor q, Tensor k, Tensor v, Tensor phi_q, Tensor phi_k, Tensor window_factor, *, int window, "
      "str layout=\"sliding\", str mixture=\"lolcats\", float? scale=None, Tensor? cu_seqlens=None, "
      "float? softcap=None) -> Tensor",
      torch::dispatch(c10::DispatchKey::CompositeImplicitAutograd, gathered<LolcatsSignature, lolcats_operator>));
}

}  // namespace cortado
