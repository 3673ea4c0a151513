// Tokenizers as the metadata of GGUF files.
#include <algorithm>
#include <cmath>

#include "cortado/base/error.h"
#include "cortado/tokenizers/bpe/bpe_tokenizer.h"
#include "cortado/tokenizers/bpe/imports.h"
#include "cortado/tokenizers/kinds.h"

namespace cortado {
namespace {

void expect_in_gguf(bool fits, const std::string& what) {
  fail_input_if(!fits, "llama.cpp's tokenizers have no ", what);
}

bool is_bytes(const BpeDefinition& definition) {
  return !definition.pre_tokenizer.empty() && definition.pre_tokenizer.back().type == "bytes";
}

// The steps that change a text and cut it into words, for comparisons.
std::string steps_before_merges(const BpeDefinition& definition) {
  BpeDefinition only;
  only.normalizer = definition.normalizer;
  only.pre_tokenizer = definition.pre_tokenizer;
  only.ignore_merges = definition.ignore_merges;
  only.byte_fallback = definition.byte_fallback;
  return JsonFields::written([&](JsonFields& json) { settings_fields(json, only); }).dump();
}

// Some tokenizers write their marks for spaces by a step of their own, and others by two steps. Gemma's cuts at spaces
// although the marks have replaced them. A mark only in front of a whole text becomes one after each special token too,
// which is llama.cpp's rule.
void use_plain_steps(BpeDefinition& definition) {
  auto& steps = definition.pre_tokenizer;
  const bool marked = std::ranges::any_of(definition.normalizer, [](const NormalizerStep& step) {
    return step.type == "replace" && !step.pattern.regex && step.pattern.text == " ";
  });
  std::erase_if(steps, [&](const PreTokenizerStep& step) {
    return marked && step.type == "split" && !step.pattern.regex && step.pattern.text == " ";
  });
  if (steps.size() != 1 || steps[0].type != "metaspace" || steps[0].split) return;
  if (steps[0].prepend != "never") definition.normalizer.push_back({"prepend", {}, steps[0].mark});
  definition.normalizer.push_back({"replace", {" "}, steps[0].mark});
  steps.clear();
}

// The score of each token, by which SentencePiece merges: the earlier its pairs, the higher. Throws InputError if the
// pairs of one token are not neighbours in the list, because scores cannot say that.
std::vector<float> scores_of_merges(const BpeDefinition& definition, const Tokenizer& tokenizer) {
  std::vector<float> scores(definition.tokens.size(), 0.0F);
  std::vector<bool> made(definition.tokens.size(), false);
  int32_t last = -1;
  for (size_t i = 0; i < definition.merges.size(); ++i) {
    const auto [left, right] = definition.merges[i];
    const int32_t token = tokenizer.find(definition.tokens[left] + definition.tokens[right]);
    if (token == last) continue;
    expect_in_gguf(token >= 0 && !made[token], "merges whose order depends on more than their result");
    made[token] = true;
    scores[token] = -static_cast<float>(i);
    last = token;
  }
  return scores;
}

int32_t token_type(const BpeDefinition& definition, const std::vector<int32_t>& added, size_t id) {
  const std::string& token = definition.tokens[id];
  if (static_cast<int32_t>(id) == definition.unknown && !is_bytes(definition)) return kUnknownToken;
  if (added[id] != 0) return added[id];
  if (token.empty()) return kUnused;
  if (definition.byte_fallback && token.size() == 6 && token.starts_with("<0x") && token.ends_with(">")) return kByte;
  const bool merges = definition.scores.empty() || !std::isnan(definition.scores[id]);
  return merges ? kNormal : kUnused;
}

// Texts and types of all tokens. Rows of the embedding without a token get one that is never used.
void add_tokens(const BpeDefinition& definition, int64_t rows, VocabularyMetadata& metadata) {
  std::vector<int32_t> added(definition.tokens.size(), 0);
  for (const AddedToken& token : definition.added) {
    added[token.id] = token.special ? kControl : kUserDefined;
    expect_in_gguf(!token.single_word, "tokens that only match whole words");
  }
  for (size_t id = 0; id < definition.tokens.size(); ++id) {
    metadata.types.push_back(token_type(definition, added, id));
    metadata.tokens.push_back(definition.tokens[id].empty() ? concat("[PAD", id, "]") : definition.tokens[id]);
  }
  for (auto id = static_cast<int64_t>(metadata.tokens.size()); id < rows; ++id) {
    metadata.types.push_back(kUnused);
    metadata.tokens.push_back(concat("[PAD", id, "]"));
  }
}

void add_special(const BpeDefinition& definition, VocabularyMetadata& metadata) {
  const SpecialTokens& special = definition.special;
  const auto id = [](int32_t token) { return token >= 0 ? std::optional(token) : std::nullopt; };
  metadata.begin = id(special.begin);
  metadata.end = id(special.end);
  metadata.unknown = id(special.unknown);
  metadata.padding = id(special.padding);
  if (!metadata.end && !special.stops.empty()) metadata.end = special.stops.front();
  for (const int32_t stop : special.stops) {
    if (stop != metadata.end) metadata.stops.push_back(stop);
  }
  const auto alone = [](const std::vector<int32_t>& list, int32_t token) {
    return list.empty() || (list.size() == 1 && list[0] == token);
  };
  expect_in_gguf(alone(special.prefix, special.begin) && alone(special.suffix, special.end),
                 "tokens around a text but its first and last one");
  metadata.add_begin = !special.prefix.empty();
  metadata.add_end = !special.suffix.empty();
}

// Whether a file with these metadata has the tokenizer's own steps.
bool fits_steps(const VocabularyMetadata& metadata, const BpeDefinition& wanted) {
  return steps_before_merges(define_vocabulary(metadata, "tokenizer")) == steps_before_merges(wanted);
}

void choose_pre_tokenizer(const BpeDefinition& definition, VocabularyMetadata& metadata) {
  metadata.add_space = definition.pre_tokenizer.front().type == "prefix_space";
  VocabularyMetadata probe = metadata;  // the steps do not depend on the tokens
  probe.tokens = {"a", "b", "ab"};
  probe.merges = {"a b"};
  probe.types.clear();
  for (const char* pre : {"gpt-2", "smollm", "llama-bpe", "qwen2", "qwen35", "dbrx", "tekken", "gpt-4o", "default"}) {
    metadata.pre = probe.pre = pre;
    if (fits_steps(probe, definition)) return;
  }
  expect_in_gguf(false, "such steps before the merges of bytes");
}

VocabularyMetadata metadata_of_bytes(const BpeDefinition& definition, int64_t rows) {
  expect_in_gguf(!definition.merges.empty(), "byte pairs without merges");
  VocabularyMetadata metadata;
  metadata.model = "gpt2";
  add_tokens(definition, rows, metadata);
  for (const auto& [left, right] : definition.merges)
    metadata.merges.push_back(definition.tokens[left] + " " + definition.tokens[right]);
  choose_pre_tokenizer(definition, metadata);
  return metadata;
}

VocabularyMetadata metadata_of_scores(BpeDefinition definition, const Tokenizer& tokenizer, int64_t rows) {
  use_plain_steps(definition);
  VocabularyMetadata metadata;
  metadata.model = "llama";
  add_tokens(definition, rows, metadata);
  metadata.scores = definition.scores.empty() ? scores_of_merges(definition, tokenizer) : definition.scores;
  metadata.scores.resize(metadata.tokens.size(), 0.0F);
  for (float& score : metadata.scores) score = std::isnan(score) ? 0.0F : score;
  const auto is = [](const char* type) { return [type](const NormalizerStep& step) { return step.type == type; }; };
  metadata.add_space = std::ranges::any_of(definition.normalizer, is("prepend"));
  metadata.remove_extra_spaces = std::ranges::count_if(definition.normalizer, is("replace")) > 1;
  expect_in_gguf(fits_steps(metadata, definition), "such steps before the merges of characters");
  return metadata;
}

VocabularyMetadata metadata_of_world(const BpeDefinition& definition, int64_t rows) {
  VocabularyMetadata metadata;
  metadata.model = "rwkv";
  add_tokens(definition, rows, metadata);
  std::string bytes;
  for (size_t id = 0; id < definition.tokens.size(); ++id) {
    if (metadata.types[id] == kNormal && bytes_of_letters(definition.tokens[id], bytes))
      metadata.tokens[id] = escaped_bytes(bytes);
  }
  return metadata;
}

VocabularyMetadata metadata_of(const BpeTokenizer& bpe, int64_t rows) {
  const BpeDefinition& definition = bpe.definition();
  if (definition.longest) return metadata_of_world(definition, rows);
  return is_bytes(definition) ? metadata_of_bytes(definition, rows) : metadata_of_scores(definition, bpe, rows);
}

GgufSettings settings_of(const VocabularyMetadata& metadata) {
  const std::string key = "tokenizer.ggml.";
  GgufSettings settings = {{key + "model", metadata.model},
                           {key + "pre", metadata.pre},
                           {key + "tokens", metadata.tokens},
                           {key + "token_type", metadata.types}};
  if (metadata.model == "gpt2") settings.emplace_back(key + "merges", metadata.merges);
  if (metadata.model == "llama") settings.emplace_back(key + "scores", metadata.scores);
  const auto id = [&](const char* name, std::optional<int32_t> token) {
    if (token) settings.emplace_back(key + name, static_cast<uint32_t>(*token));
  };
  id("bos_token_id", metadata.begin);
  id("eos_token_id", metadata.end);
  id("unknown_token_id", metadata.unknown);
  id("padding_token_id", metadata.padding);
  if (!metadata.stops.empty()) id("eot_token_id", metadata.stops.front());
  if (metadata.stops.size() > 1) id("eom_token_id", metadata.stops[1]);
  settings.emplace_back(key + "add_bos_token", metadata.add_begin.value_or(false));
  settings.emplace_back(key + "add_eos_token", metadata.add_end.value_or(false));
  settings.emplace_back(key + "add_space_prefix", metadata.add_space.value_or(false));
  if (metadata.remove_extra_spaces) settings.emplace_back(key + "remove_extra_whitespaces", true);
  const std::string chat = "tokenizer.chat_template";
  if (metadata.chat.taught()) settings.emplace_back(chat, metadata.chat.text);
  std::vector<std::string> names;
  for (const auto& [name, text] : metadata.chat.named) {
    names.push_back(name);
    settings.emplace_back(concat(chat, ".", name), text);
  }
  if (!names.empty()) settings.emplace_back(chat + "s", names);
  return settings;
}

// The byte pairs of a tokenizer; null for other kinds.
const BpeTokenizer* byte_pairs(const Tokenizer& tokenizer) {
  if (const auto* trained = dynamic_cast<const SentencePieceTokenizer*>(&tokenizer)) return &trained->pieces();
  return dynamic_cast<const BpeTokenizer*>(&tokenizer);
}

}  // namespace

GgufSettings gguf_vocabulary(const Tokenizer& tokenizer, int64_t rows) {
  const BpeTokenizer* bpe = byte_pairs(tokenizer);
  expect_in_gguf(bpe != nullptr, concat("kind like ", tokenizer.kind()));
  const BpeDefinition& definition = bpe->definition();
  VocabularyMetadata metadata = metadata_of(*bpe, rows);
  add_special(definition, metadata);
  metadata.chat = tokenizer.special().chat;
  return settings_of(metadata);
}

GgufSettings no_gguf_vocabulary() { return {{"tokenizer.ggml.model", std::string("no_vocab")}}; }

}  // namespace cortado
