// What a mechanism says of itself: each folder defines one such object, registry.cpp lists them.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cortado/mechanisms/mixer.h"
#include "cortado/mechanisms/options.h"

namespace cortado {

struct OperatorCase;  // primitives/operator_case.h

// How a mechanism stands in for softmax attention in a pretrained model (convert/).
struct SoftmaxSubstitute {
  // Softmax's linear maps that have another name here: {"q", "window_q"}.
  std::vector<std::pair<std::string, std::string>> renamed = {};
  // Settings that differ from those of a model that is trained from the start, where the layer does not say:
  // `heads` of the layer, and whether its model has rotary positions.
  std::function<void(Json& layer, int64_t heads, bool rotary)> complete = {};
  // Of a conversion to it.
  std::string help = {};
  std::vector<MechanismOption> options = {};
  double learning_rate = 1e-3;  // of attention transfer, before the plateaus
  bool next_token = false;      // a stage in which its new parameters learn by the next token
  bool usual = false;           // what a conversion is to unless something else is said
};

// A memory that layers of a converted model can have in place of their own (`--memory NAME`): this mechanism, on the
// same weights.
struct MemoryKind {
  std::string name;
  std::vector<MechanismOption> options = {};
  // Settings that go with what a conversion learned, with the mechanism's defaults; a layer for which nothing was
  // learned cannot have such a memory.
  Json learned = Json::object();
  // Whose parameters have the same names: a layer runs as any memory of its weights. Empty: softmax attention's.
  std::string weights = {};
  // Changes settings that were another mechanism's.
  std::function<void(Json& settings)> adapt = {};
};

// One mechanism, as the rest of the program knows it. Each folder defines one such object (`extern const Mechanism
// kLatte;` in mixer.h) and registry.cpp lists them.
struct Mechanism {
  std::string name;      // "latte": the config's "mixer"
  std::string family;    // "linear attention", "softmax attention", "recurrence"
  std::string paper;     // "Latte (2024)"
  std::string equation;  // one line of text
  std::string state;     // size formula in words, e.g. "L·(D/H + 2) floats"
  // What it calls of primitives/kernels.h, in any of its settings, shared bases included: a test records the calls.
  std::vector<std::string> primitives = {};
  bool causal = true;          // has a causal form
  bool bidirectional = false;  // has a bidirectional form
  // Settings are the layer's JSON object without "mixer"; the factory reads them strictly.
  std::function<std::shared_ptr<Mixer>(JsonReader& settings, const MixerContext& context)> make;
  std::string compare = "{}";  // settings in `cortado compare` (JSON) where the defaults are not usual
  bool orderless = false;      // only a model's positions tell it which token came first; those there are sinusoidal
  bool latents = false;        // and as many "latents" there as the model is wide
  // Others beside them there, by a name of their own: {"macchiato-x", R"({"source": "x"})"}.
  std::vector<std::pair<std::string, std::string>> variants = {};
  std::optional<SoftmaxSubstitute> substitute = {};
  std::optional<MemoryKind> memory = {};
  // How much of token s its slot n holds after so many tokens, [N, tokens], where that does not depend on them.
  Tensor (*slot_contents)(const Json& settings, int64_t tokens) = nullptr;
  OperatorCase (*operation)() = nullptr;  // what is measured of its operator, if it is one
};

// Mechanism::make of a mixer whose constructor reads its settings.
template <class Kind>
std::shared_ptr<Mixer> construct(JsonReader& settings, const MixerContext& context) {
  return std::make_shared<Kind>(settings, context);
}

}  // namespace cortado
