// Small parts that mixers share.
#pragma once

#include "cortado/base/error.h"
#include "cortado/base/json.h"
#include "cortado/mechanisms/mixer.h"
#include "cortado/nn/linear.h"
#include "cortado/nn/wide.h"

namespace cortado {

// Reads "heads" (default: the model's), which must divide `width`. `what` names the width in the error.
inline int64_t read_heads(JsonReader& settings, const MixerContext& context, int64_t width, const char* what) {
  const int64_t heads = settings.integer("heads", 1, 65536, context.heads);
  settings.fail_if(width % heads != 0, what, " (", width, ") is not divisible by heads (", heads, ")");
  return heads;
}

inline Tensor split_heads(const Tensor& x, int64_t heads) { return x.unflatten(-1, {heads, x.size(-1) / heads}); }
inline Tensor merge_heads(const Tensor& x) { return x.flatten(2); }

// Operations per token in linear maps: two per weight.
inline double linear_flops(std::initializer_list<const Linear*> maps) {
  double flops = 0;
  for (const Linear* map : maps) flops += map ? 2.0 * static_cast<double>(map->weight.numel()) : 0.0;
  return flops;
}

// Reads "scale" (default 1/√d) and "softcap" (default: no cap) of softmax attention's scores.
template <typename Scores>
void read_scores(JsonReader& settings, Scores& scores) {
  scores.scale = settings.optional_number("scale", 1e-9, 1e9);
  scores.softcap = settings.optional_number("softcap", 1e-6, 1e9);
}

// Reads "taps" of a short convolution, once called "conv": null or 0 for none.
inline int64_t read_taps(JsonReader& settings, int64_t fallback = 0) {
  settings.renamed("conv", "taps");
  return settings.integer_or_null("taps", 0, 64, fallback).value_or(0);
}

// Reads "taps_start": "identity" if the convolution starts as the identity, "normal" if it starts random.
inline bool read_taps_identity(JsonReader& settings) {
  return settings.choice("taps_start", {"normal", "identity"}, "normal") == "identity";
}

// Reads "rope_theta" and "rope_scaling" (default: the model's).
inline Rotary read_angles(JsonReader& settings, const MixerContext& context) {
  const double theta = settings.number("rope_theta", 1.0, 1e12, context.rope_theta);
  const bool own = settings.has("rope_scaling");
  const Json json = settings.object("rope_scaling");
  return {theta, own ? RotaryScaling::from_json(json, settings.place() + ".rope_scaling") : context.rope_scaling};
}

// Reads "rotary", "rotary_fraction", "rope_theta" and "rope_scaling"; nullopt without rotary positions. `head_dim` 0:
// the mixer has nothing to rotate.
inline std::optional<Rotary> read_rotary(JsonReader& settings, const MixerContext& context, int64_t head_dim,
                                         bool fallback) {
  const bool rotary = settings.boolean("rotary", fallback);
  const double fraction = settings.number("rotary_fraction", 0.0, 1.0, 1.0);
  Rotary angles = read_angles(settings, context);
  if (!rotary) return std::nullopt;
  settings.fail_if(head_dim % 2 != 0 && fraction == 1, "rotary positions need an even head size, got ", head_dim);
  if (head_dim == 0) return angles;
  const auto channels = static_cast<int64_t>(fraction * static_cast<double>(head_dim));
  settings.fail_if(channels < 2 || channels % 2 != 0, "rotary_fraction ", fraction, " of head_dim (", head_dim, ") is ",
                   channels, " channels, which cannot be turned in pairs");
  if (channels < head_dim) angles.channels = channels;
  const int64_t given = angles.scaling.listed(), needed = channels / 2;
  settings.fail_if(given > 0 && given != needed, "a head has ", needed, " rotary frequencies, \"rope_scaling\" has ",
                   given, " factors");
  return angles;
}

}  // namespace cortado
