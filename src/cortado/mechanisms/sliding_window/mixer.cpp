#include "cortado/mechanisms/sliding_window/mixer.h"

#include "cortado/mechanisms/shared/attention.h"
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
  }

  std::optional<PairCount> pairs(int64_t tokens) const override {
    return PairCount{static_cast<double>(std::min(tokens, *settings_.window)), 0};
  }

  std::vector<std::string> memories() const override { return {"window"}; }

  HeldPairs held(const Tensor& x) const override {
    const Tensor time = at::arange(x.size(1), at::kLong), age = time.unsqueeze(1) - time;
    const Tensor gone = (age < 0).logical_or(age >= *settings_.window);
    return {at::zeros_like(age).masked_fill(gone, -1).expand({settings_.heads, -1, -1}), {}};
  }

  Joining joining() const override { return {std::max(least_for_ring(*settings_.window), settings_.taps), 0}; }

 protected:
  void declare(StateLayout& layout) const override {
    declare_ring(layout, StateLayout::last(*settings_.window - 1));
    layout.position();
    declare_tails(layout);
  }

  JoinedKeys advance(const Tensor& k, const Tensor& v, const Batch& batch, SequenceState& state) override {
    return advance_ring(state, k, v, *settings_.window, batch);
  }
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
