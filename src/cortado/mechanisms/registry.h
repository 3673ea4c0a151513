// The mechanisms there are: one line each in registry.cpp.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cortado/mechanisms/mechanism.h"
#include "cortado/primitives/kernels.h"

namespace cortado {

const std::vector<const Mechanism*>& mechanisms();

// Its primitives that have a hand-written kernel: "Highway: gated_scan, short_conv"; "ATen" where none has.
std::string kernels_of(const Mechanism& mechanism, std::span<const Primitive> primitives = kPrimitives);

// InputError names the nearest mechanism.
const Mechanism& find_mechanism(const std::string& name);

// Builds a mixer from {"mixer": NAME, ...settings...}; refuses unknown settings. `place` names it in errors
// ("layers[3]").
std::shared_ptr<Mixer> make_mixer(const Json& settings, const MixerContext& context, const std::string& place);

// The settings that a mechanism reads in such a model: each once, also those that only a word or a switch of another
// setting makes it read. What a setting is where it is absent may depend on the model's sizes.
std::vector<JsonReader::Question> settings_of(const Mechanism& mechanism, const MixerContext& context);

}  // namespace cortado
