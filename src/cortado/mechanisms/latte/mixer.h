// Helpers of mixers with Latte's latents.
#pragma once

#include "cortado/mechanisms/latte/op.h"
#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/shared/heads.h"
#include "cortado/primitives/common.h"

namespace cortado {

// Reads "latents", the number over all heads: at least `least`, divisible by `heads`, default D.
inline int64_t read_latents(JsonReader& settings, const MixerContext& context, int64_t heads, int64_t least) {
  const int64_t latents = settings.integer("latents", least, 1 << 20, context.dim);
  settings.fail_if(latents % heads != 0, "latents (", latents, ") is not divisible by heads (", heads, ")");
  return latents;
}

// The state before this process's part of a sequence; key_logits θ [B,T,H,L] and v [B,T,H,V] are the part's. All sums
// are relative to the largest logit m = max(m_before, θ): a part maps the state S to exp(m_before - m) ⊙ S + Σ_t
// exp(θ_t - m) ⊗ v_t.
LatteState latte_before_part(const Tensor& key_logits, const Tensor& v, const LatteState& start,
                             const SequenceParts& parts);

// Adds Latte's tensors to the state: "latte_state" [rows,H,L,d], "latte_normalizer" and "latte_maximum" [rows,H,L],
// with L latents per head.
inline void declare_latte(StateLayout& layout, int64_t heads, int64_t latents_per_head, int64_t head_dim) {
  layout.scan("latte_state", {heads, latents_per_head, head_dim});
  layout.scan("latte_normalizer", {heads, latents_per_head});
  layout.scan("latte_maximum", {heads, latents_per_head}, -kInfinity);
}
// The state from which a call on these logits and values continues.
inline LatteState latte_start(const SequenceState* state, const Tensor& key_logits, const Tensor& v,
                              const Batch& batch) {
  const LatteState start = {start_of(state, "latte_state"), start_of(state, "latte_normalizer"),
                            start_of(state, "latte_maximum")};
  return batch.parts ? latte_before_part(key_logits, v, start, *batch.parts) : start;
}
inline void keep_latte(SequenceState* state, const LatteResult& result) {
  keep(state,
       {{"latte_state", result.state}, {"latte_normalizer", result.normalizer}, {"latte_maximum", result.maximum}});
}

}  // namespace cortado
