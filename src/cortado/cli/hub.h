// Writes a run as a folder for Hugging Face's hub: the model in the form that transformers opens after `import
// cortado.transformers` (python/cortado), the tokenizer, and a README.md that describes it.
#pragma once

#include <string>

#include "cortado/base/table.h"
#include "cortado/models/language_model.h"

namespace cortado {

// Returns the output of `cortado describe --json`: sizes, layers ("mixers") and state sizes ("depths"). Weights and
// states are counted in `dtype`.
Json describe_model(Backbone& model, at::ScalarType dtype);
// Tables of that description: one row per group of equal neighbouring layers; states and KV caches by length.
Table layer_table(const Json& description);
Table depth_table(const Json& description);

// What to write next to the model.
struct HubFolder {
  std::string run;         // the run whose training log is shown
  std::string evaluation;  // a file written by `cortado eval --json`, or ""
  at::ScalarType dtype = at::kFloat;
};

// Writes config.json, model.safetensors, generation_config.json, tokenizer/ (if the run has one) and README.md into the
// existing folder `folder`.
void write_hub_folder(LanguageModel& model, const HubFolder& options, const std::string& folder);

}  // namespace cortado
