// Reads rotary positions from transformers' configs.
#pragma once

#include "cortado/base/json.h"
#include "cortado/nn/rotary/rotary.h"

namespace cortado {

struct PretrainedRope {
  double theta = 1e4;
  RotaryScaling scaling = {};
  double fraction = 1.0;  // share of a head's channels that are rotated
};

// Reads "rope_parameters" of transformers 5, or "rope_scaling", its earlier name. "rope_theta" and
// "partial_rotary_factor" may be in that object or in the config itself. Throws InputError for unknown kinds of
// scaling, unknown keys and contradicting values.
PretrainedRope read_rope(JsonReader& config, double usual_fraction = 1.0);

}  // namespace cortado
