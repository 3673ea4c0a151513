// What a model is sampled with where nobody says: RUN/generation_config.json, as Hugging Face's programs have it.
#pragma once

#include <optional>
#include <string>

#include "cortado/base/json.h"
#include "cortado/generate/sampling.h"
#include "cortado/tokenizers/tokenizer.h"

namespace cortado {

// What somebody has said; the rest is as it was.
struct SamplingChoice {
  std::optional<double> temperature = {}, top_p = {}, min_p = {}, repetition_penalty = {};
  std::optional<int64_t> top_k = {};

  bool empty() const { return !temperature && !top_p && !min_p && !repetition_penalty && !top_k; }
  SamplingOptions over(SamplingOptions others) const;
};

// FOLDER/generation_config.json, of a run or of a Hugging Face model: nothing where it is not there or says nothing of
// sampling. A value that cannot be: InputError.
SamplingChoice read_generation_config(const std::string& folder);
// What a pretrained model, a Hugging Face folder or a GGUF file (general.sampling.*), says.
SamplingChoice pretrained_sampling(const std::string& source);
// Adds it to FOLDER/generation_config.json, which need not be there; nothing is written where nothing is said.
void write_generation_config(const SamplingChoice& choice, const std::string& folder);

// The run's own. A model that was taught to chat and says nothing is sampled as llama.cpp samples it; any other as
// SamplingOptions has it, which is OpenAI's default: from all tokens, as likely as the model has them.
SamplingChoice default_sampling(const std::string& run, const Tokenizer* tokenizer);

// {"temperature": 0.8, "top_k": 40, ...}
Json sampling_json(const SamplingOptions& sampling);

}  // namespace cortado
