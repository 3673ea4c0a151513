#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <unordered_map>

#include "cortado/base/error.h"
#include "cortado/formats/gguf/file.h"
#include "cortado/tokenizers/bpe/bpe_tokenizer.h"
#include "cortado/tokenizers/bpe/imports.h"

namespace cortado {
namespace {

constexpr const char* kMark = "\u2581";

PreTokenizerStep words(const std::string& regex) { return {"split", {regex, true}}; }

bool is_one_of(const std::string& pre, std::initializer_list<std::string_view> names) {
  return std::ranges::find(names, pre) != names.end();
}

// llama.cpp cuts the texts of all these as Llama 3's, and puts a begin token in front.
bool is_like_llama3(const std::string& pre) {
  return is_one_of(pre, {"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "lfm2", "pixtral"});
}

// Words of capitals that small letters follow, and words of small letters. `letters` begins both classes.
std::string cased_words(const std::string& letter_before, const std::string& end) {
  const std::string capitals = letter_before + "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]",
                    small = letter_before + "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]", first = "[^\\r\\n\\p{L}\\p{N}]?";
  const auto many = [&](const std::string& of, const char* how) {
    return letter_before.empty() ? of + how : "(?:" + of + ")" + how;
  };
  return first + many(capitals, "*") + many(small, "+") + end + "|" + first + many(capitals, "+") + many(small, "*") +
         end;
}

// The pre-tokenizer steps for a value of tokenizer.ggml.pre.
std::vector<PreTokenizerStep> steps_of(const std::string& pre, const std::string& place) {
  const std::string contractions = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|";
  const std::string rest = "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
  const PreTokenizerStep bytes{"bytes"};
  if (pre == "gpt-2" || pre == "gpt2" || pre == "phi-2" || pre == "mpt" || pre == "olmo")
    return {words(kGpt2Words), bytes};
  if (pre == "smollm" || pre == "starcoder" || pre == "refact") return {words("\\p{N}"), words(kGpt2Words), bytes};
  if (is_like_llama3(pre) || pre == "dbrx") return {words(contractions + "\\p{N}{1,3}" + rest), bytes};
  const std::string suffix = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?";
  const std::string signs = "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
  if (pre == "tekken") return {words(cased_words("", "") + "|\\p{N}" + signs), bytes};
  if (is_one_of(pre, {"gpt-4o", "llama4", "minimax-m2"}))
    return {words(cased_words("", suffix) + "|\\p{N}{1,3}" + signs), bytes};
  if (pre == "kimi-k2")
    return {words("\\p{Han}+|" + cased_words("(?!\\p{Han})", suffix) + "|\\p{N}{1,3}" + rest), bytes};
  if (pre == "qwen2" || pre == "deepseek-r1-qwen") return {words(contractions + "\\p{N}" + rest), bytes};
  if (pre == "qwen35") {  // as qwen2, and marks belong to letters
    return {
        words("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+"
              "[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"),
        bytes};
  }
  if (pre == "default") {  // llama.cpp's rule for files that name no pre-tokenizer
    return {words("[\\p{P}\\$\\+<=>\\^~\\|]+"), words(kGpt2Words), words("\\p{N}+"), words("[0-9][0-9][0-9]"), bytes};
  }
  throw InputError(concat(
      "[", place, "] tokenizer.ggml.pre \"", pre,
      "\" is not supported: gpt-2, llama-bpe, falcon3, falcon-h1, lfm2, pixtral, tekken, gpt-4o, llama4, minimax-m2, "
      "kimi-k2, dbrx, qwen2, qwen35, smollm, refact, mpt, olmo and default are"));
}

std::pair<int32_t, int32_t> read_merge(const std::string& merge, const std::unordered_map<std::string, int32_t>& ids,
                                       const std::string& place) {
  const size_t space = merge.find(' ', 1);
  const auto left = ids.find(merge.substr(0, space));
  const auto right = ids.find(space == std::string::npos ? "" : merge.substr(space + 1));
  fail_input_if(left == ids.end() || right == ids.end(), "[", place, "] merge \"", merge,
                "\": expected two tokens with a space between");
  return {left->second, right->second};
}

BpeDefinition define_bytes(const VocabularyMetadata& metadata, const std::string& place) {
  fail_input_if(metadata.merges.empty(), "[", place, "] tokenizer.ggml.merges is missing");
  BpeDefinition definition;
  definition.tokens = metadata.tokens;
  std::unordered_map<std::string, int32_t> ids;
  for (size_t id = 0; id < metadata.tokens.size(); ++id) ids.emplace(metadata.tokens[id], static_cast<int32_t>(id));
  for (const std::string& merge : metadata.merges) definition.merges.push_back(read_merge(merge, ids, place));
  definition.pre_tokenizer = steps_of(metadata.pre, place);
  if (metadata.add_space.value_or(false))
    definition.pre_tokenizer.insert(definition.pre_tokenizer.begin(), {"prefix_space"});
  // Qwen2's tokenizer normalises to NFC, Llama 3's keeps words that are tokens; the file does not say so.
  const bool llama3 = is_like_llama3(metadata.pre) || metadata.pre == "tekken";
  if (metadata.pre == "qwen2" || metadata.pre == "qwen35") definition.normalizer = {{"nfc"}};
  definition.ignore_merges = llama3;
  definition.decoder = {{"bytes"}};
  add_marked_tokens(metadata, false, definition);
  set_special(metadata, llama3, false, definition);
  return definition;
}

BpeDefinition define_scored(const VocabularyMetadata& metadata, const std::string& place) {
  fail_input_if(metadata.scores.size() != metadata.tokens.size(), "[", place, "] there are ", metadata.tokens.size(),
                " tokens, and ", metadata.scores.size(), " scores");
  BpeDefinition definition;
  definition.tokens = metadata.tokens;
  definition.special.begin = 1;  // SentencePiece's default ids
  definition.special.end = 2;
  for (size_t id = 0; id < metadata.tokens.size(); ++id) {
    const int32_t type = type_of(metadata, id);
    const bool merges = type == kNormal || type == kUserDefined;
    fail_input_if(merges && !std::isfinite(metadata.scores[id]), "[", place, "] the score of token ", id,
                  " is not a number");
    definition.scores.push_back(merges ? metadata.scores[id] : NAN);
    definition.byte_fallback |= type == kByte;
    if (type == kUnknownToken) definition.unknown = static_cast<int32_t>(id);
  }
  definition.special.unknown = definition.unknown;
  definition.fuse_unknown = true;
  if (metadata.remove_extra_spaces) {
    definition.normalizer = {{"replace", {"\\A +| +\\z", true}, ""}, {"replace", {" {2,}", true}, " "}};
  }
  if (metadata.add_space.value_or(true)) definition.normalizer.push_back({"prepend", {}, kMark});
  definition.normalizer.push_back({"replace", {" "}, kMark});
  definition.decoder = {{"replace", {kMark}, " "}, {"byte_fallback"}};
  if (metadata.add_space.value_or(true)) definition.decoder.push_back({"strip", {}, " ", false, 1, 0});
  add_marked_tokens(metadata, true, definition);
  set_special(metadata, true, false, definition);
  return definition;
}

VocabularyMetadata vocabulary_of(const GgufFile& file) {
  const std::string key = "tokenizer.ggml.";
  JsonReader metadata = file.metadata();
  const auto id = [&](const char* name) -> std::optional<int32_t> {
    if (!metadata.has(key + name)) return {};
    return static_cast<int32_t>(metadata.integer(key + name, 0, std::numeric_limits<int32_t>::max()));
  };
  const auto flag = [&](const char* name) {
    return metadata.has(key + name) ? std::optional(metadata.boolean(key + name)) : std::nullopt;
  };
  VocabularyMetadata vocabulary;
  vocabulary.model = metadata.text(key + "model");
  vocabulary.pre = metadata.text(key + "pre", vocabulary.pre);
  for (const std::string_view token : file.texts(key + "tokens")) vocabulary.tokens.emplace_back(token);
  for (const std::string_view merge : file.texts(key + "merges")) vocabulary.merges.emplace_back(merge);
  for (const double score : file.numbers(key + "scores")) vocabulary.scores.push_back(static_cast<float>(score));
  for (const double type : file.numbers(key + "token_type", /*whole=*/true)) {
    vocabulary.types.push_back(static_cast<int32_t>(std::clamp(type, 0.0, 100.0)));
  }
  vocabulary.begin = id("bos_token_id");
  vocabulary.end = id("eos_token_id");
  vocabulary.unknown = id("unknown_token_id");
  vocabulary.padding = id("padding_token_id");
  for (const char* name : {"eot_token_id", "eom_token_id"}) {
    if (const auto stop = id(name)) vocabulary.stops.push_back(*stop);
  }
  vocabulary.add_begin = flag("add_bos_token");
  vocabulary.add_end = flag("add_eos_token");
  vocabulary.add_space = flag("add_space_prefix");
  vocabulary.remove_extra_spaces = metadata.boolean(key + "remove_extra_whitespaces", false);
  const std::string chat = "tokenizer.chat_template";
  vocabulary.chat.text = metadata.text(chat, "");
  for (const std::string_view name : file.texts("tokenizer.chat_templates")) {
    const std::string key = concat(chat, ".", name);
    if (metadata.has(key)) vocabulary.chat.named.emplace_back(name, metadata.text(key));
  }
  return vocabulary;
}

}  // namespace

int32_t type_of(const VocabularyMetadata& metadata, size_t id) {
  return metadata.types.empty() ? kNormal : metadata.types[id];
}

void add_marked_tokens(const VocabularyMetadata& metadata, bool spaces, BpeDefinition& definition) {
  const Matcher mark({kMark}, "");
  for (size_t id = 0; id < metadata.tokens.size(); ++id) {
    const int32_t type = type_of(metadata, id);
    const bool special = type == kControl || type == kUnknownToken;
    if ((!special && type != kUserDefined) || metadata.tokens[id].empty()) continue;
    const std::string& token = metadata.tokens[id];
    definition.added.push_back({static_cast<int32_t>(id), spaces ? mark.replace_all(token, " ") : token, special});
  }
}

void set_special(const VocabularyMetadata& metadata, bool begin, bool end, BpeDefinition& definition) {
  SpecialTokens& special = definition.special;
  special.begin = metadata.begin.value_or(special.begin);
  special.end = metadata.end.value_or(special.end);
  special.unknown = metadata.unknown.value_or(special.unknown);
  special.padding = metadata.padding.value_or(special.padding);
  special.stops = metadata.stops;
  if (metadata.add_begin.value_or(begin) && special.begin >= 0) special.prefix = {special.begin};
  if (metadata.add_end.value_or(end) && special.end >= 0) special.suffix = {special.end};
}

BpeDefinition define_vocabulary(const VocabularyMetadata& metadata, const std::string& place) {
  fail_input_if(metadata.tokens.empty(), "[", place, "] tokenizer.ggml.tokens is missing");
  fail_input_if(!metadata.types.empty() && metadata.types.size() != metadata.tokens.size(), "[", place, "] there are ",
                metadata.tokens.size(), " tokens, and ", metadata.types.size(), " token types");
  if (metadata.model == "rwkv") return define_world(metadata, place);
  fail_input_if(metadata.model != "gpt2" && metadata.model != "llama", "[", place, "] tokenizer.ggml.model \"",
                metadata.model, "\" is not supported: gpt2, llama and rwkv are");
  return metadata.model == "gpt2" ? define_bytes(metadata, place) : define_scored(metadata, place);
}

std::shared_ptr<Tokenizer> import_vocabulary(const VocabularyMetadata& metadata, const std::string& place) {
  BpeDefinition definition = define_vocabulary(metadata, place);
  check_definition(definition, place);
  complete_special(definition, metadata.chat);
  return std::make_shared<BpeTokenizer>(std::move(definition), place);
}

std::shared_ptr<Tokenizer> pretrained_tokenizer(const std::string& source) {
  namespace fs = std::filesystem;
  if (fs::is_directory(source)) {
    const auto there = [&](const char* name) { return fs::exists(concat(source, "/", name)); };
    const bool any = there("tokenizer.json") || there("tokenizer.model") || there(kWorldVocabulary);
    return any ? import_tokenizer(source) : nullptr;
  }
  const GgufFile file(source);
  JsonReader metadata = file.metadata();
  const std::string model = metadata.text("tokenizer.ggml.model", "");
  const bool none = model.empty() || model == "none" || model == "no_vocab";  // llama.cpp's words for no tokenizer
  return none ? nullptr : import_vocabulary(vocabulary_of(file), source);
}

}  // namespace cortado
