// Small shared parts of the mixers.
#pragma once

#include "cortado/base/error.h"
#include "cortado/base/json.h"
#include "cortado/mechanisms/mixer.h"
#include "cortado/nn/linear.h"
#include "cortado/nn/wide.h"

namespace cortado {

// "heads" of the settings (default: the model's), which must divide `width`; `what` names the width in the error.
inline int64_t read_heads(JsonReader& settings, const MixerContext& context, int64_t width, const char* what) {
  const int64_t heads = settings.integer("heads", 1, 65536, context.heads);
  settings.fail_if(width % heads != 0, what, " (", width, ") is not divisible by heads (", heads, ")");
  return heads;
}

inline Tensor split_heads(const Tensor& x, int64_t heads) { return x.unflatten(-1, {heads, x.size(-1) / heads}); }
inline Tensor merge_heads(const Tensor& x) { return x.flatten(2); }

// Two operations for each weight of the linear maps.
inline double linear_flops(std::initializer_list<const Linear*> maps) {
  double flops = 0;
  for (const Linear* map : maps) flops += map ? 2.0 * static_cast<double>(map->weight.numel()) : 0.0;
  return flops;
}

// "scale" and "softcap" of the settings, for the scores of softmax attention: none is 1/√d, and no cap.
template <typename Scores>
void read_scores(JsonReader& settings, Scores& scores) {
  scores.scale = settings.optional_number("scale", 1e-9, 1e9);
  scores.softcap = settings.optional_number("softcap", 1e-6, 1e9);
}

// "taps" of the settings, of a short convolution ("conv" to earlier versions): null or 0 for none.
inline int64_t read_taps(JsonReader& settings, int64_t fallback = 0) {
  settings.renamed("conv", "taps");
  return settings.integer_or_null("taps", 0, 64, fallback).value_or(0);
}

// "taps_start" of the settings: whether the convolution starts as the identity, or as random as a matrix.
inline bool read_taps_identity(JsonReader& settings) {
  return settings.choice("taps_start", {"normal", "identity"}, "normal") == "identity";
}

// "rope_theta" and "rope_scaling" of the settings (default: the model's).
inline Rotary read_angles(JsonReader& settings, const MixerContext& context) {
  const double theta = settings.number("rope_theta", 1.0, 1e12, context.rope_theta);
  const bool own = settings.has("rope_scaling");
  const Json json = settings.object("rope_scaling");
  return {theta, own ? RotaryScaling::from_json(json, settings.place() + ".rope_scaling") : context.rope_scaling};
}

// "rotary", "rope_theta" and "rope_scaling" of the settings: none without rotary positions. `channels`: of a head,
// those that are rotated (all).
inline std::optional<Rotary> read_rotary(JsonReader& settings, const MixerContext& context, int64_t head_dim,
                                         bool fallback, std::optional<int64_t> channels = {}) {
  const bool rotary = settings.boolean("rotary", fallback);
  settings.fail_if(rotary && head_dim % 2 != 0, "rotary positions need an even head size, got ", head_dim);
  const Rotary angles = read_angles(settings, context);
  if (!rotary) return std::nullopt;
  const auto given = static_cast<int64_t>(angles.scaling.factors.size()), needed = channels.value_or(head_dim) / 2;
  settings.fail_if(given > 0 && needed > 0 && given != needed, "a head has ", needed,
                   " rotary frequencies, \"rope_scaling\" has ", given, " factors");
  return angles;
}

}  // namespace cortado
