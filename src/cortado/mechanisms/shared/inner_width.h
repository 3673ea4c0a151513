// The width of a state space model's layer.
#pragma once

#include "cortado/mechanisms/mixer.h"

namespace cortado {

// Reads "width", or "expand" times the model's width.
inline int64_t read_inner_width(JsonReader& settings, const MixerContext& context) {
  if (!settings.has("width"))
    return settings.integer("width", 1, 1 << 20, settings.integer("expand", 1, 64, 2) * context.dim);
  settings.fail_if(settings.has("expand"), "\"width\" stands in place of \"expand\"");
  return settings.integer("width", 1, 1 << 20);
}

}  // namespace cortado
