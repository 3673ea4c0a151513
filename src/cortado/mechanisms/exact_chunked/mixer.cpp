// exact_chunked: softmax attention computed in chunks with a running maximum, the exact baseline.
#include "cortado/mechanisms/softmax/mixer.h"

#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/shared/interval_attention.h"

namespace cortado {
namespace {

// `softmax` with another algorithm: its projections, cache, state and results.
class ExactChunkedMixer : public SoftmaxMixer {
 public:
  ExactChunkedMixer(JsonReader& settings, const MixerContext& context)
      : SoftmaxMixer(settings, context, "exact_chunked"), chunk_(settings.integer("chunk", 1, 1 << 20, 64)) {}

 protected:
  Attended attend(const Tensor& q, const JoinedKeys& keys, const WindowAttentionOptions& options) const override {
    const KeyPlaces places = key_places(q, keys, options.cu_seqlens);
    const IntervalOptions chunked{.begin = places.first,
                                  .end = options.causal ? places.own + 1 : places.end,
                                  .chunk = chunk_,
                                  .scale = options.scale,
                                  .softcap = options.softcap};
    const auto [o, lse] = interval_attention(q, keys.k, keys.v, chunked);
    return {o, lse};
  }

 private:
  int64_t chunk_;
};

}  // namespace

extern const Mechanism kExactChunked = {
    .name = "exact_chunked",
    .family = "softmax attention",
    .paper = "Rabe and Staats (2021)",
    .equation = "o_t = sum_{s<=t} softmax_s(q_t.k_s / sqrt d) v_s, in chunks with a running maximum",
    .state = "2 T Hkv d",
    .primitives = {"short_conv"},
    .bidirectional = true,
    .make = construct<ExactChunkedMixer>,
};

}  // namespace cortado
