// Token-by-token traces of single mechanisms for a text. The web page's inspector shows them live.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <optional>
#include <vector>

#include "cortado/analyze/capture.h"
#include "cortado/models/language_model.h"

namespace cortado {

// Returns a layer's mixer in float32, with derivatives: the model's own, or a float32 copy if its weights are narrower
// (int8, int4, bfloat16, float16).
std::shared_ptr<Mixer> plain_mixer(const LanguageModel& model, int64_t layer);

// Returns the operators that the mixer calls for x [1, T, D], without recording derivatives.
std::vector<OperatorCall> calls_of(Mixer& mixer, const at::Tensor& x);

// Returns p(l|t) of the latents as [T, H, L+1]; column 0 is the probability of the window. Undefined if the mixer has
// no latents.
at::Tensor latent_weights(const std::vector<OperatorCall>& calls);

// Slots that hold mixtures of the past, M per head. Token t is written into slot n with weight write[h][t][n], and
// keep[h][t][n] is the factor on the slot's earlier contents. After token t, slot n holds token s with weight
// write[s][n] * prod_{s < u <= t} keep[u][n], divided by the sum over s if `normalized`.
struct SlotTrace {
  at::Tensor write, keep;  // double [H, T, M]
  at::Tensor read;         // double [H, T, M]: the softmax over the slots that gives token t its output
  bool normalized = false;

  // Returns the weights after token t, [H, M, t + 1].
  at::Tensor contents(int64_t t) const;
};
std::optional<SlotTrace> slot_trace(const std::vector<OperatorCall>& calls);

// A gated state, [H, K, V] or one number per channel: its Frobenius norm after every token, and the mean, minimum and
// maximum over the channels of that token's decay. All are double [H, T]. A delta rule without gates has decay 1,
// because what it removes depends on the key. gate_trace returns nothing if no scan runs over all `tokens`.
struct GateTrace {
  at::Tensor norm, decay, least, most;
};
std::optional<GateTrace> gate_trace(const std::vector<OperatorCall>& calls, int64_t heads, int64_t tokens);

}  // namespace cortado
