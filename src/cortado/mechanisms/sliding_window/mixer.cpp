#include "cortado/mechanisms/sliding_window/mixer.h"

#include "cortado/mechanisms/shared/attention.h"
#include "cortado/mechanisms/shared/interval_attention.h"
#include "cortado/mechanisms/shared/ring/ring.h"

namespace cortado {
namespace {

// State: "keys", "values" [rows, P, Hkv, d], the last P <= w - 1 pairs, oldest first, right-aligned; "position" [rows];
// with taps also the tails "q_conv", "k_conv", "v_conv".
class SlidingWindowMixer : public AttentionMixer {
 public:
  SlidingWindowMixer(JsonReader& settings, const MixerContext& context)
      : AttentionMixer("sliding_window", AttentionSettings::read_all(settings, context), context.dim) {
    settings_.window = settings.integer("window", 1, 1 << 30, 129);
    aligned_ = settings.boolean("aligned", false);
    settings.fail_if(aligned_ && !context.causal, "\"aligned\" windows have no bidirectional form");
  }

  std::optional<PairCount> pairs(int64_t tokens) const override {
    return PairCount{static_cast<double>(seen(tokens)), 0};
  }

  std::vector<std::string> memories() const override { return {"window"}; }

  HeldPairs held(const Tensor& x) const override {
    const Tensor time = at::arange(x.size(1), at::kLong), age = time.unsqueeze(1) - time;
    const Tensor first = aligned_ ? time - time.remainder(*settings_.window) : time - (*settings_.window - 1);
    const Tensor gone = (age < 0).logical_or(time < first.unsqueeze(1));
    return {at::zeros_like(age).masked_fill(gone, -1).expand({settings_.heads, -1, -1}), {}};
  }

  Joining joining() const override { return {std::max(least_for_ring(*settings_.window), settings_.taps), 0}; }

  double flops_per_token(int64_t tokens) const override {
    return weight_flops() + 4.0 * static_cast<double>(settings_.width()) * static_cast<double>(seen(tokens));
  }

 protected:
  void declare(StateLayout& layout) const override {
    declare_ring(layout, StateLayout::last(*settings_.window - 1));
    layout.position();
    declare_tails(layout);
  }

  JoinedKeys advance(const Tensor& k, const Tensor& v, const Batch& batch, SequenceState& state) override {
    return advance_ring(state, k, v, *settings_.window, batch);
  }

  Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) override {
    if (!aligned_) return AttentionMixer::mix(x, batch, state);
    const Tensor positions = batch.positions(x, start_of(state, "position"));
    const Projected p = project(x, batch, state);
    JoinedKeys keys{p.k, p.v, std::nullopt, batch.cu_seqlens};
    if (state) keys = advance(p.k, p.v, batch, *state);
    const KeyPlaces places = key_places(p.q, keys, batch.cu_seqlens);
    const Tensor first = at::maximum(places.first, places.own - positions.remainder(*settings_.window));
    return output(past_sinks(attend_from(first, places.own + 1, p.q, keys)).to(x.scalar_type()), x);
  }

  Attended attend_reference(const Tensor& q, const Tensor& k, const Tensor& v) const override {
    if (!aligned_) return AttentionMixer::attend_reference(q, k, v);
    Tensors outputs, sums;
    for (int64_t begin = 0; begin < q.size(1); begin += *settings_.window) {
      const auto block = [&](const Tensor& x) { return x.slice(1, begin, begin + *settings_.window); };
      const Attended own = AttentionMixer::attend_reference(block(q), block(k), block(v));
      outputs.push_back(own.o);
      sums.push_back(own.lse);
    }
    return {at::cat(outputs, 1), at::cat(sums, 1)};
  }

 private:
  static constexpr int64_t kQueriesAtOnce = 256;

  // The keys that the token at depth `tokens` sees.
  int64_t seen(int64_t tokens) const {
    if (tokens == 0) return 0;
    return aligned_ ? (tokens - 1) % *settings_.window + 1 : std::min(tokens, *settings_.window);
  }

  // Whether each row's queries see keys from one place on.
  static bool is_one_block(const Tensor& first, const JoinedKeys& keys) {
    const int64_t tokens = first.size(1);
    if (keys.cu_seqlens_k || tokens == 0) return false;
    return tokens == 1 || first.select(1, 0).equal(first.select(1, tokens - 1));
  }

  // Query t sees keys first..end - 1. window_attention's kernels compute calls within a block.
  Attended attend_from(const Tensor& first, const Tensor& end, const Tensor& q, const JoinedKeys& keys) const {
    if (is_one_block(first, keys)) {
      WindowAttentionOptions options = settings_;
      options.window.reset();
      const Tensor begin = first.select(1, 0).expand({q.size(0)}).contiguous();
      const auto [o, lse] = attend_joined_with_sums(q, {keys.k, keys.v, begin, std::nullopt}, options);
      return {o, lse};
    }
    const IntervalOptions interval{
        .begin = first, .end = end, .chunk = kQueriesAtOnce, .scale = settings_.scale, .softcap = settings_.softcap};
    const auto [o, lse] = interval_attention(q, keys.k, keys.v, interval);
    return {o, lse};
  }

  bool aligned_ = false;  // a window begins at a multiple of its width
};

}  // namespace

const Mechanism kSlidingWindow = {
    .name = "sliding_window",
    .family = "softmax attention",
    .paper = "Latte-Macchiato eq. 17",
    .equation = "o_t = sum_{t-w<s<=t} softmax_s(q_t.k_s / sqrt d) v_s",
    .state = "2 (w-1) Hkv d",
    .primitives = {"window_attention", "short_conv"},
    .bidirectional = true,
    .make = construct<SlidingWindowMixer>,
    .compare = R"({"window": 129})",  // as Macchiato's: the paper's 128 and the current token
    .memory =
        MemoryKind{.name = "window",
                   .options = {{.name = "window", .help = "pairs in the window", .high = 1 << 24, .fallback = 64}}},
};

}  // namespace cortado
