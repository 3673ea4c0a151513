// The list of all mechanisms, one line each in registry.cpp.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cortado/mechanisms/mechanism.h"
#include "cortado/primitives/kernels.h"

namespace cortado {

const std::vector<const Mechanism*>& mechanisms();

// The primitives that it calls and that have a hand-written kernel: "Highway: gated_scan, short_conv"; "ATen" if none
// has.
std::string kernels_of(const Mechanism& mechanism, std::span<const Primitive> primitives = kPrimitives);

// The mechanism of this name. Throws InputError, which suggests the nearest name.
const Mechanism& find_mechanism(const std::string& name);

// Builds a mixer from {"mixer": NAME, ...settings...}. Throws InputError for unknown settings and for a mechanism
// without the causal or bidirectional form that the context wants. `place` names the layer in errors ("layers[3]").
std::shared_ptr<Mixer> make_mixer(const Json& settings, const MixerContext& context, const std::string& place);

// All settings that a mechanism reads in such a model, each once, including those it reads only if another setting has
// a certain word or switch. A default may depend on the model's sizes.
std::vector<JsonReader::Question> settings_of(const Mechanism& mechanism, const MixerContext& context);

}  // namespace cortado
