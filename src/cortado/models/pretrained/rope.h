// Rotary positions as transformers' configs give them.
#pragma once

#include "cortado/base/json.h"
#include "cortado/nn/rotary.h"

namespace cortado {

struct PretrainedRope {
  double theta = 1e4;
  RotaryScaling scaling = {};
  double fraction = 1.0;  // of a head's channels that turn
};

// "rope_parameters" of transformers 5, else "rope_theta", "rope_scaling" and "partial_rotary_factor". Kinds of scaling
// that are not known here: InputError.
PretrainedRope read_rope(JsonReader& config, double usual_fraction = 1.0);

}  // namespace cortado
