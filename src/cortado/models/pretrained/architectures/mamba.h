// Mixers of Mamba and Mamba-2, for the readers of models that contain them.
#pragma once

#include <optional>
#include <string>

#include "cortado/models/pretrained/renamed.h"

namespace cortado {

// Sizes of a Mamba mixer, whose width is `expand` times the model's.
struct MambaSizes {
  int64_t expand, state, rank, taps;
  bool bias, conv_bias;
  std::optional<double> norm_eps =
      {};  // of the norms of B, C and the step's input, which the caller maps; nullopt: none
};
RenamedMixer mamba_mixer(const MambaSizes& sizes, int64_t dim);
// Reads the rank of the steps' map: a number, or "auto".
int64_t read_step_rank(JsonReader& config, const char* key, int64_t dim);

// Sizes of a Mamba-2 mixer, whose width is `width` or, without it, `expand` times the model's.
struct Mamba2Sizes {
  int64_t expand = 0, heads = 0, groups = 1, state = 0, taps = 0;
  bool bias = false, conv_bias = false;
  double norm_eps = 0;
  std::optional<int64_t> width = {};
  std::string norm = "after_gate";  // the mixer's setting
};
RenamedMixer mamba2_mixer(const Mamba2Sizes& sizes, int64_t dim);

// Accepts only the step bounds [0, infinity] (in any JSON notation of infinity), because steps are not bounded here.
void expect_free_steps(JsonReader& config);

}  // namespace cortado
