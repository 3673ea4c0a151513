// linear: attention with a feature map in place of the exponential, and the gated block of the linear-attention
// chapter.
#pragma once

#include "cortado/mechanisms/mechanism.h"

namespace cortado {

// Makes `linear` with a feature map of FeatureMap::kinds(). `gate` is the default of the setting "gate".
std::shared_ptr<Mixer> make_linear(const std::string& name, JsonReader& settings, const MixerContext& context,
                                   const std::string& feature_map, bool gate);

}  // namespace cortado
