// What single mechanisms do with a text, token by token: who looks into a model sees it live.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <optional>
#include <vector>

#include "cortado/analyze/capture.h"
#include "cortado/models/language_model.h"

namespace cortado {

// A layer's mixer as its derivatives can be had, and for float32: the model's own, or where its weights are narrower
// (int8, int4, bfloat16, float16) a copy of them.
std::shared_ptr<Mixer> plain_mixer(const LanguageModel& model, int64_t layer);

// The operators that the mixer calls for x [1, T, D], without derivatives.
std::vector<OperatorCall> calls_of(Mixer& mixer, const at::Tensor& x);

// p(l|t) of the latents [T, H, L+1], column 0 what they leave for a window; undefined where the mixer has no latents.
at::Tensor latent_weights(const std::vector<OperatorCall>& calls);

// Slots that hold mixtures of the past, M a head: token t is written into slot n with write[h][t][n], and keep[h][t][n]
// is what is left of what was there. So after token t slot n holds token s with the weight
// write[s][n] * prod_{s < u <= t} keep[u][n], divided by the sum over s where `normalized`.
struct SlotTrace {
  at::Tensor write, keep;  // double [H, T, M]
  at::Tensor read;         // double [H, T, M]: the softmax over the slots that gives token t its output
  bool normalized = false;

  // After token t: [H, M, t + 1].
  at::Tensor contents(int64_t t) const;
};
std::optional<SlotTrace> slot_trace(const std::vector<OperatorCall>& calls);

// A state with gates, [H, K, V] or a number a channel: its Frobenius norm after every token, and what that token's
// gates leave of what was there, the mean over the channels and the extremes. Double [H, T] all. A delta rule without
// gates leaves 1: what it takes away depends on the key. Nothing where no scan goes over all `tokens`.
struct GateTrace {
  at::Tensor norm, decay, least, most;
};
std::optional<GateTrace> gate_trace(const std::vector<OperatorCall>& calls, int64_t heads, int64_t tokens);

}  // namespace cortado
