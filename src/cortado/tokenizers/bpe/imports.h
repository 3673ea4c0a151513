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

// Derives which tokens end an answer and which chat style the model was trained on.
void complete_special(BpeDefinition& definition, const std::string& chat_template);

}  // namespace cortado
