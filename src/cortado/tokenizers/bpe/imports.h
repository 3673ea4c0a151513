// Declarations that the importers and the exporter share.
#pragma once

#include <string>

#include "cortado/tokenizers/bpe/definition.h"
#include "cortado/tokenizers/import.h"

namespace cortado {

// GPT-2's pattern for words: letters with the space before them, digits, other signs, white space.
inline constexpr const char* kGpt2Words =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

// Reads or writes a step as in Hugging Face's tokenizer.json. Only the pre-tokenizer steps "split" and "metaspace" have
// a direct counterpart there.
void hf_fields(JsonFields& json, NormalizerStep& step);
void hf_fields(JsonFields& json, PreTokenizerStep& step);
void hf_fields(JsonFields& json, DecoderStep& step);

// Builds a definition from a vocabulary's metadata. InputError "[place] ..." if it is incomplete or not supported.
BpeDefinition define_vocabulary(const VocabularyMetadata& metadata, const std::string& place);

// Reads a SentencePiece model file (a protocol buffer). InputError if it is damaged, not a BPE model, or changes the
// text by a normalisation table.
VocabularyMetadata read_sentencepiece_model(const std::string& bytes, const std::string& path);

// Reads RWKV's vocabulary: lines of an id, a Python literal and its number of bytes. InputError if it is damaged. Tokens
// that the file lacks, such as 0, are empty.
BpeDefinition read_world_vocabulary(const std::string& text, const std::string& path);
// Adds token 0, which begins and ends texts, if no file beside the vocabulary names it.
void complete_world(BpeDefinition& definition);
// The World tokenizer of a GGUF file.
BpeDefinition define_world(const VocabularyMetadata& metadata, const std::string& place);
// A token's bytes as GGUF files have them.
std::string escaped_bytes(std::string_view bytes);

// Adds the tokens that a GGUF file marks: control tokens, unknown ones, the user's. `spaces`: marks in them are spaces.
void add_marked_tokens(const VocabularyMetadata& metadata, bool spaces, BpeDefinition& definition);
// Sets the special tokens. `begin` and `end`: whether a text gets them if the file does not say it.
void set_special(const VocabularyMetadata& metadata, bool begin, bool end, BpeDefinition& definition);
// The types of a GGUF file's tokens.
enum TokenType : int32_t { kNormal = 1, kUnknownToken = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };
// A token's type; normal if the file has none.
int32_t type_of(const VocabularyMetadata& metadata, size_t id);

// The chat templates of a Hugging Face folder. `config`: what its tokenizer_config.json says.
ChatTemplates chat_templates_of(const std::string& folder, const Json& config);
// Derives which tokens end an answer, and the chat template of a model whose files have none.
void complete_special(BpeDefinition& definition, const ChatTemplates& chat);

}  // namespace cortado
