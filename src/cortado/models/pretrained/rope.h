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
// "partial_rotary_factor" may be in that object or in the config itself; where neither has them, `usual_...`. Throws InputError for unknown kinds of
// scaling, unknown keys and contradicting values.
PretrainedRope read_rope(JsonReader& config, double usual_fraction = 1.0, double usual_theta = 1e4);

// As read_rope(), of models that turn whole heads. Throws InputError for a fraction.
Rotary read_whole_rope(JsonReader& config, double usual_theta = 1e4);

// Makes them the rotary positions of our config; the mixers' "rotary_fraction" is the caller's.
void write_rope(const Rotary& rope, Json& config);
inline void write_rope(const PretrainedRope& rope, Json& config) {
  write_rope(Rotary(rope.theta, rope.scaling), config);
}

// A scaling as "rope_scaling" says it; null: none.
Json rope_scaling_json(const RotaryScaling& scaling);

// Gemma-3's positions, which differ between full attention and windows. Reads "rope_parameters" with an object for
// each; or, as transformers 4 wrote them, "rope_theta" and "rope_scaling" for full attention and "rope_local_base_freq"
// for windows. Throws InputError if windows are stretched to a longer context.
struct RopesByType {
  Rotary full, sliding;
};
struct UsualThetas {
  double full, sliding;
};
RopesByType read_ropes_by_type(JsonReader& config, const UsualThetas& usual);

}  // namespace cortado
