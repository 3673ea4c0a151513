// exact_chunked: softmax attention computed in chunks with a running maximum, the honest baseline.
#pragma once

#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/softmax/mixer.h"

namespace cortado {

extern const Mechanism kExactChunked;

// Projections, cache and results of `softmax`; only the algorithm differs. State: as softmax.
class ExactChunkedMixer : public SoftmaxMixer {
 public:
  ExactChunkedMixer(const AttentionSettings& settings, int64_t chunk, int64_t dim)
      : SoftmaxMixer(settings, dim, "exact_chunked"), chunk_(chunk) {}

 protected:
  Tensor attend(const Tensor& q, const JoinedKeys& keys, const WindowAttentionOptions& options) const override;

 private:
  int64_t chunk_;
};

}  // namespace cortado
