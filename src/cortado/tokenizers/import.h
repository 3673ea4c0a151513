// The tokenizers of pretrained models: from the forms they are published in, and in the form that Hugging Face's
// programs read.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cortado/tokenizers/tokenizer.h"

namespace cortado {

// A Hugging Face folder's tokenizer: tokenizer.json (byte-pair encodings), or else tokenizer.model (SentencePiece's
// byte-pair models). More tokens, which tokens are special, what ends an answer and how to chat comes from
// tokenizer_config.json, added_tokens.json, special_tokens_map.json, chat_template.jinja, generation_config.json and
// config.json, where they are. Missing, broken or of a kind that is not supported: InputError in one line.
std::shared_ptr<Tokenizer> import_tokenizer(const std::string& folder);

// What a GGUF file says about its tokenizer, by the keys tokenizer.ggml.*.
struct VocabularyMetadata {
  std::string model;                // "gpt2": byte-level with merges; "llama": SentencePiece with scores
  std::string pre = "default";      // of gpt2: how text is cut into words
  std::vector<std::string> tokens;  // by id
  std::vector<std::string> merges;  // of gpt2: "left right"
  std::vector<float> scores;        // of llama
  std::vector<int32_t> types;       // 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte; or none
  // bos_token_id, eos_token_id, unknown_token_id, padding_token_id
  std::optional<int32_t> begin = {}, end = {}, unknown = {}, padding = {};
  std::vector<int32_t> stops = {};  // eot_token_id and others that end an answer
  // add_bos_token, add_eos_token, add_space_prefix; absent: the model's custom
  std::optional<bool> add_begin = {}, add_end = {}, add_space = {};
  bool remove_extra_spaces = false;  // remove_extra_whitespaces
  std::string chat_template = {};    // tokenizer.chat_template
};

// `place` names the file in messages.
std::shared_ptr<Tokenizer> import_vocabulary(const VocabularyMetadata& metadata, const std::string& place);

// The tokenizer of a pretrained model, a Hugging Face folder or a GGUF file; null if there is none.
std::shared_ptr<Tokenizer> pretrained_tokenizer(const std::string& source);

// Writes tokenizer.json, tokenizer_config.json (with a chat template, if the model was taught to chat) and
// generation_config.json into a folder. False, and nothing is written: the tokenizer is none of byte pairs, the only
// kind that pretrained models have here. InputError, and nothing is written: those files have no words for a step of
// it.
bool export_tokenizer(const Tokenizer& tokenizer, const std::string& folder);

}  // namespace cortado
