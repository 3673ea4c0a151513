// Rotary positions as transformers' configs give them.
#pragma once

#include "cortado/base/json.h"
#include "cortado/nn/rotary/rotary.h"

namespace cortado {

struct PretrainedRope {
  double theta = 1e4;
  RotaryScaling scaling = {};
  double fraction = 1.0;  // of a head's channels that turn
};

// "rope_parameters" of transformers 5, or "rope_scaling", which is its earlier name; each may hold "rope_theta" and
// "partial_rotary_factor", or these stand beside it. InputError: kinds of scaling and keys that are not known here, and
// two values for one thing.
PretrainedRope read_rope(JsonReader& config, double usual_fraction = 1.0);

}  // namespace cortado
