// Byte-pair encoding as pretrained models have it: by bytes (GPT-2, Llama 3, Qwen2, SmolLM) or by characters with bytes
// for the unknown ones (Llama 2, Mistral, Gemma).
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cortado/tokenizers/bpe/merges.h"
#include "cortado/tokenizers/bpe/text_steps.h"

namespace cortado {

class BpeTokenizer : public Tokenizer {
 public:
  // `place` for messages: an InputError names it where the definition contradicts itself.
  BpeTokenizer(BpeDefinition definition, const std::string& place);
  static std::shared_ptr<Tokenizer> load(JsonReader& reader, const std::string& directory);

  std::string kind() const override { return "bpe"; }
  int64_t vocabulary() const override { return static_cast<int64_t>(definition_.tokens.size()); }
  std::vector<int32_t> encode(std::string_view text) const override;
  std::string decode(const std::vector<int32_t>& tokens) const override;
  std::string piece(int32_t token) const override;
  bool is_special(int32_t token) const override;
  const SpecialTokens& special() const override { return definition_.special; }
  int32_t find(std::string_view text) const override;
  void save(const std::string& directory) const override;

  const BpeDefinition& definition() const { return definition_; }

 private:
  void encode_segment(const Word& segment, Merger::Cache& cache, std::vector<int32_t>& tokens) const;

  BpeDefinition definition_;
  Normalizer normalizer_;
  AddedTokenFinder raw_;         // looks in the text as it is
  AddedTokenFinder normalized_;  // in the normalised text
  PreTokenizer pre_tokenizer_;
  Merger merger_;
  TokenDecoder decoder_;
  TextMap<int32_t> ids_;
  std::vector<std::string> pieces_;  // what each token stands for in the middle of a text
  std::vector<bool> special_;

  mutable std::mutex mutex_;  // of cache_: who does not get it uses one of its own
  mutable Merger::Cache cache_;
};

}  // namespace cortado
