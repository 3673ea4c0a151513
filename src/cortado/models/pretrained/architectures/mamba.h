// Mixers of Mamba and Mamba-2, for the readers of models that contain them.
#pragma once

#include "cortado/models/pretrained/renamed.h"

namespace cortado {

// Sizes of a Mamba-2 mixer, whose width is `expand` times the model's.
struct Mamba2Sizes {
  int64_t expand, heads, groups, state, taps;
  bool bias, conv_bias;
  double norm_eps;
};
RenamedMixer mamba2_mixer(const Mamba2Sizes& sizes, int64_t dim);

// Accepts only the step bounds [0, infinity] (in any JSON notation of infinity), because steps are not bounded here.
void expect_free_steps(JsonReader& config);

}  // namespace cortado
