#include "cortado/mechanisms/softmax/mixer.h"

#include "cortado/mechanisms/shared/growing_cache.h"

namespace cortado {

constexpr CacheNames kSoftmaxCache = {"keys", "values"};

void SoftmaxMixer::declare(StateLayout& layout) const {
  declare_cache(layout, kSoftmaxCache, pair_shape());
  declare_tails(layout);
}

JoinedKeys SoftmaxMixer::advance(const Tensor& k, const Tensor& v, const Batch& batch, SequenceState& state) {
  return advance_cache(state, kSoftmaxCache, k, v, batch);
}

const Mechanism kSoftmax = {
    .name = "softmax",
    .family = "softmax attention",
    .paper = "Vaswani et al. (2017); Latte-Macchiato eq. 1-3",
    .equation = "o_t = sum_{s<=t} softmax_s(q_t.k_s / sqrt d) v_s",
    .state = "2 T Hkv d",
    .primitives = {"window_attention", "short_conv"},
    .bidirectional = true,
    .make = construct<SoftmaxMixer>,
    .memory = MemoryKind{.name = "softmax"},
};

}  // namespace cortado
