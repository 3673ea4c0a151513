// Imports the tokenizers of pretrained models from the formats they are published in, and exports them for Hugging
// Face's libraries.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cortado/formats/gguf/writer.h"
#include "cortado/tokenizers/tokenizer.h"

namespace cortado {

// The vocabulary of RWKV's World tokenizer in a Hugging Face folder.
inline constexpr const char* kWorldVocabulary = "rwkv_vocab_v20230424.txt";

// Imports a Hugging Face folder's tokenizer: tokenizer.json (byte-pair encodings), or else tokenizer.model (byte-pair
// models of SentencePiece), or else RWKV's vocabulary. Further tokens, special tokens, the tokens that end an answer, and the chat templates come
// from tokenizer_config.json, added_tokens.json, special_tokens_map.json, chat_template.jinja, additional_chat_templates/,
// generation_config.json and config.json, if present. InputError (one line) if the tokenizer is missing, broken or not supported.
std::shared_ptr<Tokenizer> import_tokenizer(const std::string& folder);

// A GGUF file's metadata about its tokenizer (keys tokenizer.ggml.*).
struct VocabularyMetadata {
  // "gpt2": byte-level with merges; "llama": SentencePiece with scores; "rwkv": RWKV's World, with escaped bytes
  std::string model;
  std::string pre = "default";      // gpt2 only: the pre-tokenizer
  std::vector<std::string> tokens;  // by id
  std::vector<std::string> merges;  // gpt2 only: "left right"
  std::vector<float> scores;        // llama only
  std::vector<int32_t> types;       // 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte; may be empty
  // bos_token_id, eos_token_id, unknown_token_id, padding_token_id
  std::optional<int32_t> begin = {}, end = {}, unknown = {}, padding = {};
  std::vector<int32_t> stops = {};  // eot_token_id and others that end an answer
  // add_bos_token, add_eos_token, add_space_prefix; nullopt: the default of the model type
  std::optional<bool> add_begin = {}, add_end = {}, add_space = {};
  bool remove_extra_spaces = false;  // remove_extra_whitespaces
  ChatTemplates chat = {};           // tokenizer.chat_template, tokenizer.chat_template.NAME
};

// Builds a tokenizer from the metadata. InputError "[place] ..." if it is incomplete or not supported.
std::shared_ptr<Tokenizer> import_vocabulary(const VocabularyMetadata& metadata, const std::string& place);

// The tokenizer of a pretrained model (a Hugging Face folder or a GGUF file); null if it has none.
std::shared_ptr<Tokenizer> pretrained_tokenizer(const std::string& source);

// Writes tokenizer.json, tokenizer_config.json (with the chat templates) and
// generation_config.json into a folder. Returns false and writes nothing if the tokenizer has no byte pairs. InputError, and nothing is written, if Hugging Face's format cannot
// express a step of the tokenizer.
bool export_tokenizer(const Tokenizer& tokenizer, const std::string& folder);

// The tokenizer as a GGUF file's metadata, for an embedding of `rows` tokens. InputError with the reason if llama.cpp
// has no such tokenizer.
GgufSettings gguf_vocabulary(const Tokenizer& tokenizer, int64_t rows);
// What a file without a tokenizer says.
GgufSettings no_gguf_vocabulary();

}  // namespace cortado
