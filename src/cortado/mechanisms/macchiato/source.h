// The source of macchiato's latent queries and keys.
#pragma once

#include "cortado/base/words.h"
#include "cortado/nn/norm/norms.h"
#include "cortado/nn/rg_lru/rg_lru.h"
#include "cortado/nn/short_convolution.h"

namespace cortado {

// x itself, a short convolution of x, or an RG-LRU and RMSNorm (eq. 18 and §4.1).
enum class SourceKind { kX, kConv, kRgLru };
inline const Words<SourceKind>& macchiato_sources() {
  static const Words<SourceKind> words = {
      {"x", SourceKind::kX}, {"conv", SourceKind::kConv}, {"rg_lru", SourceKind::kRgLru}};
  return words;
}

// Maps x [B,T,D] to y [B,T,D]. In the bidirectional form the convolution and the RG-LRU run in both directions and are
// summed. (The paper does not say how; this is our choice.)
class Source : public Module {
 public:
  Source(SourceKind kind, int64_t dim, int64_t heads, int64_t taps, bool identity, bool causal);

  // Reads the state's "source_tail" (convolution) or "source_h" (RG-LRU) and "position", and updates all but the
  // position.
  Tensor forward(const Tensor& x, const Batch& batch, SequenceState* state) const;
  Tensor reference(const Tensor& x) const;

  void declare(StateLayout& layout) const;
  int64_t least_part() const;
  // Operations per token besides those of its modules' weights.
  double flops_per_token() const;

 private:
  SourceKind kind_;
  bool causal_;
  std::shared_ptr<ShortConvolution> conv_;  // not a submodule: its weight [D, taps] is the parameter "taps"
  std::shared_ptr<RgLru> rg_lru_;
  std::shared_ptr<RmsNorm> norm_;
};

}  // namespace cortado
