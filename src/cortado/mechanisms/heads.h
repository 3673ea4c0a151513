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
  if (width % heads != 0) {
    settings.fail(concat(what, " (", width, ") is not divisible by heads (", heads, ")"));
  }
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

// "conv" of the settings: the taps of a short convolution, null for none.
inline std::optional<int64_t> read_taps(JsonReader& settings, std::optional<int64_t> fallback) {
  return settings.says("conv") ? settings.optional_integer("conv", 1, 64) : fallback;
}

// "rotary" and "rope_theta" of the settings: the base of the positions' angles, none without rotary positions.
inline std::optional<double> read_rotary(JsonReader& settings, const MixerContext& context, int64_t head_dim,
                                         bool fallback) {
  const bool rotary = settings.boolean("rotary", fallback);
  if (rotary && head_dim % 2 != 0) {
    settings.fail(concat("rotary positions need an even head size, got ", head_dim));
  }
  const double theta = settings.number("rope_theta", 1.0, 1e12, context.rope_theta);
  return rotary ? std::optional<double>(theta) : std::nullopt;
}

inline at::TensorOptions position_options(const at::TensorOptions& options) { return options.dtype(at::kLong); }

}  // namespace cortado
