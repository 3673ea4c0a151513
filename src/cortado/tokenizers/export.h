// The tokenizers of pretrained models, in the form that Hugging Face's programs read.
#pragma once

#include <string>

#include "cortado/tokenizers/tokenizer.h"

namespace cortado {

// Writes tokenizer.json, tokenizer_config.json (with a chat template, if the model was taught to chat) and
// generation_config.json into a folder. False, and nothing is written: the tokenizer is none of byte pairs, the only
// kind that pretrained models have here. InputError, and nothing is written: those files have no words for a step of
// it.
bool export_tokenizer(const Tokenizer& tokenizer, const std::string& folder);

}  // namespace cortado
