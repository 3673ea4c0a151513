#include "cortado/mechanisms/sliding_window/mixer.h"

#include "cortado/mechanisms/shared/ring.h"

namespace cortado {

StateLayout SlidingWindowMixer::state_layout() const {
  StateLayout layout;
  declare_ring(layout, StateLayout::last(*settings_.window - 1));
  layout.position();
  return layout;
}

JoinedKeys SlidingWindowMixer::advance(const Tensor& k, const Tensor& v, const Batch& batch, SequenceState& state) {
  return advance_ring(state, k, v, *settings_.window, batch);
}

std::optional<PairCount> SlidingWindowMixer::pairs(int64_t tokens) const {
  return PairCount{static_cast<double>(std::min(tokens, *settings_.window)), 0};
}

const Mechanism kSlidingWindow = {
    .name = "sliding_window",
    .family = "softmax attention",
    .paper = "Latte-Macchiato eq. 17",
    .equation = "o_t = sum_{t-w<s<=t} softmax_s(q_t.k_s / sqrt d) v_s",
    .state = "2 (w-1) Hkv d",
    .primitives = {"window_attention"},
    .bidirectional = true,
    .make =
        [](JsonReader& settings, const MixerContext& context) {
          AttentionSettings read = AttentionSettings::read(settings, context);
          read.window = settings.integer("window", 1, 1 << 30, 129);
          return std::make_shared<SlidingWindowMixer>(read, context.dim);
        },
    .compare = R"({"window": 129})",  // Macchiato's: the paper's 128 and the token itself
    .memory =
        MemoryKind{.name = "window",
                   .options = {{.name = "window", .help = "pairs in the window", .high = 1 << 24, .fallback = 64}}},
};

}  // namespace cortado
