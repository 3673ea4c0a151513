// A run as a folder for Hugging Face's hub: the model as transformers opens it once `cortado.transformers` is imported
// (python/cortado), the tokenizer, and a README.md that says what it is.
#pragma once

#include <string>

#include "cortado/base/table.h"
#include "cortado/models/language_model.h"

namespace cortado {

// What `cortado describe --json` prints: sizes, layers ("mixers") and what they keep ("depths"); weights and states are
// of `dtype`.
Json describe_model(Backbone& model, at::ScalarType dtype);
// Tables of it: equal neighbouring layers as one row; states beside KV caches.
Table layer_table(const Json& description);
Table depth_table(const Json& description);

struct HubFolder {
  std::string run;         // whose training log is told
  std::string evaluation;  // a file of `cortado eval --json`, or ""
  at::ScalarType dtype = at::kFloat;
};

// Writes config.json, model.safetensors, generation_config.json, tokenizer/ (where the run has one) and README.md into
// `folder`, which exists.
void write_hub_folder(LanguageModel& model, const HubFolder& options, const std::string& folder);

}  // namespace cortado
