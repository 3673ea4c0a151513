// The description of a mechanism for the rest of the program. Each folder defines one; registry.cpp lists them.
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

// How a conversion (convert/) puts a mechanism in place of softmax attention in a pretrained model.
struct SoftmaxSubstitute {
  // Pairs of softmax attention's name of a linear map and this mechanism's name of it: {"q", "window_q"}.
  std::vector<std::pair<std::string, std::string>> renamed = {};
  // Adds the settings that a converted layer needs and does not have, where the defaults serve models trained from
  // scratch. `heads` are the layer's; `rotary` says whether its model has rotary positions.
  std::function<void(Json& layer, int64_t heads, bool rotary)> complete = {};
  // Help text and options of a conversion to this mechanism.
  std::string help = {};
  std::vector<MechanismOption> options = {};
  double learning_rate = 1e-3;  // initial rate of attention transfer, which plateaus reduce
  bool next_token = false;      // has a training stage by next-token prediction for its new parameters
  bool usual = false;           // the default target of a conversion
};

// A memory that a converted layer can run with in place of its own (`--memory NAME`): this mechanism on the layer's
// weights.
struct MemoryKind {
  std::string name;
  std::vector<MechanismOption> options = {};
  // Settings that stand for what a conversion learned, each with the mechanism's default. A layer that learned nothing
  // for one of them cannot run with this memory.
  Json learned = Json::object();
  // The mechanism whose parameter names this one shares: a layer can run with any memory of equal `weights`. Empty:
  // softmax attention.
  std::string weights = {};
  // Adapts settings that come from another mechanism.
  std::function<void(Json& settings)> adapt = {};
};

// One mechanism, as the rest of the program knows it. Its folder defines the object (`extern const Mechanism kLatte;`).
struct Mechanism {
  std::string name;      // "latte": the config's "mixer"
  std::string family;    // "linear attention", "softmax attention", "recurrence"
  std::string paper;     // "Latte (2024)"
  std::string equation;  // one line of text
  std::string state;     // numbers in a layer's state for one sequence: "L (d + 2)". Letters: cli/mechanisms.cpp
  // The entries of primitives/kernels.h that it calls in any of its settings, calls of shared bases included. A test
  // records the calls and compares.
  std::vector<std::string> primitives = {};
  bool causal = true;          // has a causal form
  bool bidirectional = false;  // has a bidirectional form
  // Settings are the layer's JSON object without "mixer"; the factory reads them strictly.
  std::function<std::shared_ptr<Mixer>(JsonReader& settings, const MixerContext& context)> make;
  std::string compare = "{}";  // settings in `cortado compare` (JSON), where the defaults are unusual
  bool orderless = false;  // does not know the tokens' order; `cortado compare` gives its model sinusoidal positions
  bool latents = false;    // has "latents"; `cortado compare` sets them to the model's width
  // Variants that `cortado compare` trains too, with their names: {"macchiato-x", R"({"source": "x"})"}.
  std::vector<std::pair<std::string, std::string>> variants = {};
  std::optional<SoftmaxSubstitute> substitute = {};
  std::optional<MemoryKind> memory = {};
  // The weight of token s in slot n after `tokens` tokens, [N, tokens]. Null if the weights depend on the tokens.
  Tensor (*slot_contents)(const Json& settings, int64_t tokens) = nullptr;
  // Inputs, definition and work that `cortado bench ops` measures, if it is an operator
  OperatorCase (*operation)() = nullptr;
};

// Mechanism::make for a mixer whose constructor reads its settings.
template <class Kind>
std::shared_ptr<Mixer> construct(JsonReader& settings, const MixerContext& context) {
  return std::make_shared<Kind>(settings, context);
}

}  // namespace cortado
