// The default sampling settings of a model: RUN/generation_config.json, in Hugging Face's form.
#pragma once

#include <optional>
#include <string>

#include "cortado/base/json.h"
#include "cortado/generate/sampling.h"
#include "cortado/tokenizers/tokenizer.h"

namespace cortado {

// The sampling settings that somebody has chosen. over() applies them to `others`.
struct SamplingChoice {
  std::optional<double> temperature = {}, top_p = {}, min_p = {}, repetition_penalty = {};
  std::optional<int64_t> top_k = {};

  bool empty() const { return !temperature && !top_p && !min_p && !repetition_penalty && !top_k; }
  SamplingOptions over(SamplingOptions others) const;
};

// Reads FOLDER/generation_config.json of a run or a Hugging Face model. Returns no settings if the file is missing or
// has none about sampling. Throws InputError for an invalid value.
SamplingChoice read_generation_config(const std::string& folder);
// Returns the settings of a pretrained model: a Hugging Face folder, or a GGUF file (general.sampling.*).
SamplingChoice pretrained_sampling(const std::string& source);
// Merges the settings into FOLDER/generation_config.json, creating it if needed. Writes nothing if `choice` is empty.
void write_generation_config(const SamplingChoice& choice, const std::string& folder);

// Returns the run's own settings if it has any. Otherwise a chat model gets llama.cpp's defaults, and any other model
// those of SamplingOptions: sampling from the model's distribution as it is, which is OpenAI's default.
SamplingChoice default_sampling(const std::string& run, const Tokenizer* tokenizer);

// Returns {"temperature": 0.8, "top_k": 40, ...}.
Json sampling_json(const SamplingOptions& sampling);

}  // namespace cortado
