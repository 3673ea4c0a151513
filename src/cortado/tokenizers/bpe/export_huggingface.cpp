#include <algorithm>
#include <tuple>

#include "cortado/base/error.h"
#include "cortado/base/files.h"
#include "cortado/tokenizers/bpe/bpe_tokenizer.h"
#include "cortado/tokenizers/bpe/imports.h"

namespace cortado {
namespace {

template <typename Step>
Json hf_json(Step step) {
  return JsonFields::written([&](JsonFields& json) { hf_fields(json, step); });
}

Json sequence(const char* members, const Json& steps) {
  if (steps.empty()) return nullptr;
  return steps.size() == 1 ? steps[0] : Json{{"type", "Sequence"}, {members, steps}};
}

Json byte_level(bool add_prefix_space, bool use_regex) {
  return {
      {"type", "ByteLevel"}, {"add_prefix_space", add_prefix_space}, {"trim_offsets", true}, {"use_regex", use_regex}};
}

bool is_gpt2_split(const PreTokenizerStep& step) {
  return step.type == "split" && step.pattern.regex && step.pattern.text == kGpt2Words && step.behavior == "isolated" &&
         !step.invert;
}

// Hugging Face's ByteLevel combines up to three of our steps: prefix_space, the split by kGpt2Words, and bytes.
// prefix_space has no counterpart of its own.
Json hf_pre_tokenizer(const std::vector<PreTokenizerStep>& steps) {
  Json json = Json::array();
  for (size_t i = 0; i < steps.size(); ++i) {
    const PreTokenizerStep& step = steps[i];
    const bool space = step.type == "prefix_space";
    const size_t words = i + space, bytes = words + (words < steps.size() && is_gpt2_split(steps[words]));
    if (bytes < steps.size() && steps[bytes].type == "bytes") {
      json.push_back(byte_level(space, bytes > words));
      i = bytes;
    } else {
      fail_input_if(step.type != "split" && step.type != "metaspace",
                    "[export] tokenizer.json has no such step at this place: ", step.type);
      json.push_back(hf_json(step));
    }
  }
  return sequence("pretokenizers", json);
}

// Hugging Face's Strip applies to each token, unless a Fuse before it joins them.
Json hf_decoder(const std::vector<DecoderStep>& steps) {
  Json json = Json::array();
  for (const DecoderStep& step : steps) {
    if (step.type == "strip") json.push_back({{"type", "Fuse"}});
    json.push_back(step.type == "bytes" ? byte_level(true, true) : hf_json(step));
  }
  return sequence("decoders", json);
}

using Pairs = std::vector<std::pair<int32_t, int32_t>>;

// The merges that the scores imply, the highest score first; equal scores by the ids of token, left and right.
Pairs pairs_by_score(const BpeDefinition& definition, const Tokenizer& tokenizer) {
  const auto find = [&](std::string_view text) { return tokenizer.find(text); };
  auto found = scored_pairs(definition.scores, definition.tokens, find);
  std::sort(found.begin(), found.end(), [](const ScoredPair& a, const ScoredPair& b) {
    return std::tie(a.rank, a.token, a.left, a.right) < std::tie(b.rank, b.token, b.left, b.right);
  });
  Pairs pairs;
  for (const ScoredPair& pair : found) pairs.emplace_back(pair.left, pair.right);
  return pairs;
}

// Ids of all tokens except the `apart` ones: readers of the file number these consecutively after the vocabulary. If
// that would give another id, the vocabulary lists the added tokens too.
nlohmann::json hf_vocabulary(const BpeDefinition& definition) {
  std::vector<bool> apart(definition.tokens.size(), false);
  for (const AddedToken& token : definition.added) apart[token.id] = token.apart;
  nlohmann::json vocabulary = nlohmann::json::object();
  for (size_t id = 0; id < definition.tokens.size(); ++id) {
    if (!definition.tokens[id].empty() && !apart[id]) vocabulary[definition.tokens[id]] = id;
  }
  const auto count = static_cast<int64_t>(vocabulary.size());
  int64_t most = -1;
  bool counted = true;
  for (const AddedToken& token : definition.added) {
    counted &= !token.apart || token.id == (most >= count ? most + 1 : count);
    most = std::max<int64_t>(most, token.id);
  }
  if (counted) return vocabulary;
  for (const AddedToken& token : definition.added) {
    vocabulary[definition.tokens[token.id]] = token.id;
  }
  return vocabulary;
}

Json hf_model(const BpeDefinition& definition, const Tokenizer& tokenizer) {
  Json merges = Json::array();
  for (const auto& [left, right] :
       definition.scores.empty() ? definition.merges : pairs_by_score(definition, tokenizer)) {
    merges.push_back({definition.tokens[left], definition.tokens[right]});
  }
  const bool unknown = definition.unknown >= 0;
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", unknown ? Json(definition.tokens[definition.unknown]) : Json()},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", definition.fuse_unknown},
          {"byte_fallback", definition.byte_fallback},
          {"ignore_merges", definition.ignore_merges},
          {"vocab", hf_vocabulary(definition)},
          {"merges", merges}};
}

// An added token whose text differs from its symbol (spaces instead of marks) is written as the symbol and searched in
// the normalised text, in which the spaces have become marks.
Json hf_added_tokens(const BpeDefinition& definition) {
  const bool prepends = std::any_of(definition.normalizer.begin(), definition.normalizer.end(),
                                    [](const NormalizerStep& step) { return step.type == "prepend"; });
  Json json = Json::array();
  for (const AddedToken& token : definition.added) {
    const std::string& symbol = definition.tokens[token.id];
    fail_input_if(prepends && symbol != token.text, "[export] tokenizer.json cannot say that token ", token.id,
                  " is spaces where a mark is put in front of every text");
    json.push_back({{"id", token.id},
                    {"content", symbol},
                    {"single_word", token.single_word},
                    {"lstrip", token.lstrip},
                    {"rstrip", token.rstrip},
                    {"normalized", token.normalized || symbol != token.text},
                    {"special", token.special}});
  }
  return json;
}

// The tokens that begin and end a whole text.
Json hf_post_processor(const BpeDefinition& definition) {
  const SpecialTokens& special = definition.special;
  if (special.prefix.empty() && special.suffix.empty()) return nullptr;
  Json single = Json::array(), pair = Json::array(), tokens = Json::object();
  const auto add = [&](const std::vector<int32_t>& ids) {
    for (const int32_t id : ids) {
      const std::string& text = definition.tokens[id];
      for (Json* list : {&single, &pair}) list->push_back({{"SpecialToken", {{"id", text}, {"type_id", 0}}}});
      tokens[text] = {{"id", text}, {"ids", {id}}, {"tokens", {text}}};
    }
  };
  add(special.prefix);
  single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  for (const char* name : {"A", "B"}) pair.push_back({{"Sequence", {{"id", name}, {"type_id", 0}}}});
  add(special.suffix);
  return {{"type", "TemplateProcessing"}, {"single", single}, {"pair", pair}, {"special_tokens", tokens}};
}

Json hf_tokenizer(const BpeDefinition& definition, const Tokenizer& tokenizer) {
  Json normalizers = Json::array();
  for (const NormalizerStep& step : definition.normalizer) normalizers.push_back(hf_json(step));
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", hf_added_tokens(definition)},
          {"normalizer", sequence("normalizers", normalizers)},
          {"pre_tokenizer", hf_pre_tokenizer(definition.pre_tokenizer)},
          {"post_processor", hf_post_processor(definition)},
          {"decoder", hf_decoder(definition.decoder)},
          {"model", hf_model(definition, tokenizer)}};
}

Json tokenizer_config(const BpeDefinition& definition) {
  const SpecialTokens& special = definition.special;
  Json json = {{"tokenizer_class", "PreTrainedTokenizerFast"}, {"clean_up_tokenization_spaces", false}};
  const std::pair<const char*, int32_t> roles[] = {{"bos_token", special.begin},
                                                   {"eos_token", special.end},
                                                   {"unk_token", special.unknown},
                                                   {"pad_token", special.padding}};
  for (const auto& [key, id] : roles) {
    if (id >= 0) json[key] = definition.tokens[id];
  }
  if (special.chat.taught()) json["chat_template"] = special.chat.text;
  if (special.chat.named.empty()) return json;
  Json templates = Json::array({{{"name", "default"}, {"template", special.chat.text}}});
  for (const auto& [name, text] : special.chat.named) templates.push_back({{"name", name}, {"template", text}});
  json["chat_template"] = templates;
  return json;
}

Json generation_config(const SpecialTokens& special) {
  Json json = Json::object();
  if (special.begin >= 0) json["bos_token_id"] = special.begin;
  if (!special.stops.empty()) json["eos_token_id"] = special.stops;
  if (special.padding >= 0) json["pad_token_id"] = special.padding;
  return json;
}

}  // namespace

bool export_tokenizer(const Tokenizer& tokenizer, const std::string& folder) {
  const auto* bpe = dynamic_cast<const BpeTokenizer*>(&tokenizer);
  if (!bpe || bpe->definition().longest) return false;
  const BpeDefinition& definition = bpe->definition();
  const std::pair<const char*, Json> files[] = {{"tokenizer.json", hf_tokenizer(definition, tokenizer)},
                                                {"tokenizer_config.json", tokenizer_config(definition)},
                                                {"generation_config.json", generation_config(definition.special)}};
  for (const auto& [name, json] : files) write_file(folder + "/" + name, json.dump(2) + "\n");
  return true;
}

}  // namespace cortado
