// What the imports share.
#pragma once

#include <string>

#include "cortado/tokenizers/bpe/definition.h"
#include "cortado/tokenizers/import.h"

namespace cortado {

// GPT-2's words: letters with the space before them, digits, other signs, white space.
inline constexpr const char* kGpt2Words =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

// A step as Hugging Face's tokenizer.json has it, to be read and to be written; of those that cut only "split" and
// "metaspace", which it has as such.
void hf_fields(JsonFields& json, NormalizerStep& step);
void hf_fields(JsonFields& json, PreTokenizerStep& step);
void hf_fields(JsonFields& json, DecoderStep& step);

BpeDefinition define_vocabulary(const VocabularyMetadata& metadata, const std::string& place);

// A SentencePiece model file, by its protocol buffer. Unigram models and those that change the text are refused.
VocabularyMetadata read_sentencepiece_model(const std::string& bytes, const std::string& path);

// Fills in what follows from the tokens there are: which of them end an answer, and how to chat.
void complete_special(BpeDefinition& definition, const std::string& chat_template);

}  // namespace cortado
