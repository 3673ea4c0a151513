// Where the latents' queries and keys of macchiato come from.
#pragma once

#include "cortado/base/words.h"
#include "cortado/nn/norm/norms.h"
#include "cortado/nn/rg_lru/rg_lru.h"
#include "cortado/nn/short_convolution.h"

namespace cortado {

// x itself, a short convolution of it, or an RG-LRU and RMSNorm (eq. 18 and §4.1).
enum class SourceKind { kX, kConv, kRgLru };
inline const Words<SourceKind>& macchiato_sources() {
  static const Words<SourceKind> words = {
      {"x", SourceKind::kX}, {"conv", SourceKind::kConv}, {"rg_lru", SourceKind::kRgLru}};
  return words;
}

// y [B,T,D] from x [B,T,D]. Bidirectional: the convolution and the RG-LRU run in both directions and are summed (the
// paper does not say how; this is our choice).
class Source : public Module {
 public:
  Source(SourceKind kind, int64_t dim, int64_t heads, int64_t taps, bool identity, bool causal);

  // The state's "source_tail" (convolution) or "source_h" (RG-LRU) and "position" are read; the first two are moved on.
  Tensor forward(const Tensor& x, const Batch& batch, SequenceState* state) const;
  Tensor reference(const Tensor& x) const;

  void declare(StateLayout& layout) const;
  int64_t least_part() const;
  // But for the weights of its modules.
  double flops_per_token() const;

 private:
  SourceKind kind_;
  bool causal_;
  std::shared_ptr<ShortConvolution> conv_;  // not a submodule: its weight [D, taps] is the parameter "taps"
  std::shared_ptr<RgLru> rg_lru_;
  std::shared_ptr<RmsNorm> norm_;
};

}  // namespace cortado
