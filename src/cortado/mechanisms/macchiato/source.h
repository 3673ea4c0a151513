// Where Macchiato's latent queries and keys come from: x itself, a short convolution of it, or an RG-LRU and RMSNorm
// (eq. 18 and §4.1).
#pragma once

#include "cortado/nn/norms.h"
#include "cortado/nn/rg_lru.h"
#include "cortado/nn/short_convolution.h"
#include "cortado/nn/state.h"

namespace cortado {

enum class SourceKind { kX, kConv, kRgLru };

// y [B,T,D] from x [B,T,D]. Bidirectional: the convolution and the RG-LRU run in both directions and are summed (the
// paper does not say how; this is our choice).
class Source : public torch::nn::Module {
 public:
  Source(SourceKind kind, int64_t dim, int64_t heads, int64_t taps, bool causal);

  // The state's "source_tail" (convolution) or "source_h" (RG-LRU) and "position" are read; the first two are moved on.
  Tensor forward(const Tensor& x, const Batch& batch, SequenceState* state) const;
  Tensor reference(const Tensor& x) const;
  void declare(StateLayout& layout) const;
  double flops_per_token() const;  // but for the weights of its modules

 private:
  SourceKind kind_;
  int64_t dim_;
  bool causal_;
  std::shared_ptr<ShortConvolution> conv_;  // not a submodule: its weight [D, taps] is the parameter "taps"
  std::shared_ptr<RgLru> rg_lru_;
  std::shared_ptr<RmsNorm> norm_;
};

}  // namespace cortado
