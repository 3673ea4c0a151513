#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <unordered_map>

#include "cortado/base/error.h"
#include "cortado/base/files.h"
#include "cortado/base/utf8.h"
#include "cortado/tokenizers/bpe/bpe_tokenizer.h"
#include "cortado/tokenizers/bpe/imports.h"

namespace cortado {
namespace {

using Large = nlohmann::json;
using Ids = std::unordered_map<std::string, int32_t>;

// --- The components of tokenizer.json, each with a "type". Keys without effect on the ids (offsets, padding) are not
// read.

const Words<std::string> kNormalizers = {{"NFC", "nfc"},          {"NFD", "nfd"},         {"NFKC", "nfkc"},
                                         {"NFKD", "nfkd"},        {"Replace", "replace"}, {"Prepend", "prepend"},
                                         {"Sequence", "sequence"}};
const Words<std::string> kCuts = {{"Split", "split"}, {"Metaspace", "metaspace"}};
const Words<std::string> kBehaviors = {{"Removed", "removed"},
                                       {"Isolated", "isolated"},
                                       {"MergedWithPrevious", "merged_with_previous"},
                                       {"MergedWithNext", "merged_with_next"},
                                       {"Contiguous", "contiguous"}};
const Words<std::string> kDecoders = {
    {"ByteLevel", "bytes"}, {"Replace", "replace"},     {"ByteFallback", "byte_fallback"}, {"Fuse", "fuse"},
    {"Strip", "strip"},     {"Metaspace", "metaspace"}, {"Sequence", "sequence"}};

void type_field(JsonFields& json, std::string& type, const Words<std::string>& types) {
  if (json.reading()) type = types.front().second;
  json.word("type", type, types);
}

// Unlike the other fields, a flag may be absent.
void flag_field(JsonFields& json, const char* key, bool& value) {
  json.field(key, value, [&](JsonReader& reader) { return reader.boolean(key, value); });
}

void replace_fields(JsonFields& json, Pattern& pattern, std::string& text) {
  pattern_field(json, pattern, "Regex", "String");
  json.text("content", text);
}

// Older files have add_prefix_space instead of prepend_scheme.
std::string prepend_scheme(JsonReader& reader) {
  const bool add = reader.boolean("add_prefix_space", true);
  return reader.choice("prepend_scheme", {"always", "first", "never"}, add ? "always" : "never");
}

void metaspace_fields(JsonFields& json, std::string& mark, std::string& prepend, bool& split) {
  json.text("replacement", mark);
  json.field("prepend_scheme", prepend, prepend_scheme);
  flag_field(json, "split", split);
}

// Calls `read` for each member of a "Sequence", or once for a single step.
template <typename Step, typename Read>
void read_steps(const Json& node, const std::string& place, const char* members, Step& steps, Read read) {
  if (node.is_null()) return;
  JsonReader reader(node, place);
  if (reader.text("type") != "Sequence") return read(reader, steps);
  const Json list = reader.any(members);
  if (!list.is_array()) reader.fail("key \"", members, "\": expected a list");
  for (size_t i = 0; i < list.size(); ++i) {
    read_steps(list[i], concat(place, ".", members, "[", i, "]"), members, steps, read);
  }
}

// Skips "Fuse": it lets the following Strip see the whole text, and our "strip" always does.
template <typename Step>
void read_step(JsonReader& reader, std::vector<Step>& steps) {
  Step step;
  JsonFields json(reader, /*required=*/true);
  hf_fields(json, step);
  if (step.type != "fuse") steps.push_back(std::move(step));
}

PreTokenizerStep split_step(const std::string& regex, const std::string& behavior, bool invert = false) {
  return {"split", {regex, true}, behavior, invert};
}

void read_pre_tokenizer_step(JsonReader& reader, std::vector<PreTokenizerStep>& steps) {
  const std::string type = reader.choice("type", {"ByteLevel", "Split", "Digits", "Metaspace", "Punctuation",
                                                  "Whitespace", "WhitespaceSplit", "CharDelimiterSplit", "Sequence"});
  if (type == "ByteLevel") {
    if (reader.boolean("add_prefix_space", true)) steps.push_back({"prefix_space"});
    if (reader.boolean("use_regex", true)) steps.push_back(split_step(kGpt2Words, "isolated"));
    steps.push_back({"bytes"});
  } else if (type == "Split" || type == "Metaspace") {
    read_step(reader, steps);
  } else if (type == "Digits") {
    steps.push_back(split_step("\\p{N}", reader.boolean("individual_digits", false) ? "isolated" : "contiguous"));
  } else if (type == "Punctuation") {
    const std::string behavior = choose(reader, "behavior", kBehaviors, "Isolated");
    steps.push_back(split_step("[!-/:-@\\[-`{-~\\p{P}]", behavior));
  } else if (type == "Whitespace") {
    steps.push_back(split_step("[\\w\\p{Join_Control}]+|[^\\w\\p{Join_Control}\\s]+", "removed", true));
  } else if (type == "WhitespaceSplit") {
    steps.push_back(split_step("\\s", "removed"));
  } else {
    steps.push_back({"split", {reader.text("delimiter")}, "removed"});
  }
}

int32_t find_id(const Ids& ids, const std::string& token, const JsonReader& reader) {
  const auto found = ids.find(token);
  if (found == ids.end()) reader.fail("there is no token \"", token, "\"");
  return found->second;
}

// Reads the tokens before and after a single text.
void read_template(JsonReader& reader, const Ids& known, SpecialTokens& special) {
  bool before = true;
  for (const auto& item : reader.any("single")) {
    if (item.is_object() && item.contains("Sequence")) {
      before = false;
      continue;
    }
    JsonReader token(item.is_object() ? item.value("SpecialToken", Json()) : item, reader.place() + ".single");
    auto& ids = before ? special.prefix : special.suffix;
    ids.push_back(find_id(known, token.text("id"), reader));
  }
}

void read_post_processor(JsonReader& reader, const Ids& known, SpecialTokens& special) {
  const std::string type =
      reader.choice("type", {"ByteLevel", "TemplateProcessing", "RobertaProcessing", "BertProcessing", "Sequence"});
  if (type == "TemplateProcessing") read_template(reader, known, special);
  if (type != "RobertaProcessing" && type != "BertProcessing") return;
  for (const char* key : {"cls", "sep"}) {
    const Json pair = reader.any(key);
    if (!pair.is_array() || pair.empty() || !pair[0].is_string()) reader.fail("key \"", key, "\": not a token");
    auto& ids = key[0] == 'c' ? special.prefix : special.suffix;
    ids.push_back(find_id(known, pair[0].get<std::string>(), reader));
  }
}

// --- The vocabulary and merges.

Ids read_vocabulary(const Large& vocabulary, const std::string& place, BpeDefinition& definition) {
  fail_input_if(!vocabulary.is_object() || vocabulary.empty(), "[", place,
                "] key \"model.vocab\": expected an object of tokens and their ids");
  Ids ids;
  ids.reserve(vocabulary.size());
  for (const auto& [token, value] : vocabulary.items()) {
    const bool good = value.is_number_integer() && value >= 0 && value < kMostTokens;
    fail_input_if(!good, "[", place, "] key \"model.vocab\": the id of \"", token, "\" must be from 0 to ",
                  kMostTokens - 1);
    const auto id = value.get<size_t>();
    if (id >= definition.tokens.size()) definition.tokens.resize(id + 1);
    fail_input_if(!definition.tokens[id].empty(), "[", place, "] key \"model.vocab\": \"", token, "\" and \"",
                  definition.tokens[id], "\" have the same id ", id);
    definition.tokens[id] = token;
    ids.emplace(token, static_cast<int32_t>(id));
  }
  return ids;
}

// A merge is "a b" or ["a", "b"].
void read_merges(const Large& merges, const Ids& ids, const std::string& place, BpeDefinition& definition) {
  fail_input_if(!merges.is_array(), "[", place, "] key \"model.merges\": expected a list");
  definition.merges.reserve(merges.size());
  for (const auto& merge : merges) {
    std::string left, right;
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      left = merge[0].get<std::string>();
      right = merge[1].get<std::string>();
    } else if (merge.is_string()) {
      const auto text = merge.get<std::string>();
      if (text.starts_with("#version")) continue;
      const size_t space = text.find(' ');
      left = text.substr(0, space);
      right = space == std::string::npos ? "" : text.substr(space + 1);
    }
    const auto a = ids.find(left), b = ids.find(right);
    fail_input_if(a == ids.end() || b == ids.end(), "[", place, "] key \"model.merges\": merge ",
                  definition.merges.size(), " does not name two tokens of the vocabulary");
    definition.merges.emplace_back(a->second, b->second);
  }
}

AddedToken read_added_token(JsonReader& reader, int64_t id) {
  AddedToken token;
  token.id = static_cast<int32_t>(id);
  token.text = reader.text("content");
  token.special = reader.boolean("special", false);
  token.normalized = reader.boolean("normalized", !token.special);
  token.lstrip = reader.boolean("lstrip", false);
  token.rstrip = reader.boolean("rstrip", false);
  token.single_word = reader.boolean("single_word", false);
  return token;
}

// A later entry for an id replaces the earlier one.
void add_token(AddedToken token, const std::string& place, Ids& ids, BpeDefinition& definition) {
  const auto id = static_cast<size_t>(token.id);
  if (id >= definition.tokens.size()) definition.tokens.resize(id + 1);
  if (!definition.scores.empty()) definition.scores.resize(definition.tokens.size(), NAN);
  std::string& text = definition.tokens[id];
  const auto known = ids.find(token.text);
  fail_input_if((!text.empty() && text != token.text) || (known != ids.end() && known->second != token.id), "[", place,
                "] \"", token.text, "\" cannot have the id ", token.id, ": the vocabulary says otherwise");
  const auto before = std::ranges::find(definition.added, token.id, &AddedToken::id);
  token.apart = before == definition.added.end() ? text.empty() : before->apart;
  text = token.text;
  ids.emplace(token.text, token.id);
  if (before == definition.added.end()) {
    definition.added.push_back(std::move(token));
  } else {
    *before = std::move(token);
  }
}

void read_added_tokens(const Large& list, const std::string& path, Ids& ids, BpeDefinition& definition) {
  if (!list.is_array()) return;
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string place = concat(path, ".added_tokens[", i, "]");
    JsonReader reader(Json(list[i]), place);
    add_token(read_added_token(reader, reader.integer("id", 0, kMostTokens - 1)), place, ids, definition);
  }
}

void read_model(JsonReader reader, const Ids& ids, BpeDefinition& definition) {
  reader.choice("type", {"BPE"}, "BPE");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!reader.text(key, "").empty()) reader.fail("key \"", key, "\": marks within words are not supported");
  }
  reader.fail_if(reader.number("dropout", 0, 1, 0) > 0, "key \"dropout\": merges left out at random are not supported");
  if (reader.has("unk_token")) definition.unknown = find_id(ids, reader.text("unk_token"), reader);
  definition.fuse_unknown = reader.boolean("fuse_unk", false);
  definition.byte_fallback = reader.boolean("byte_fallback", false);
  definition.ignore_merges = reader.boolean("ignore_merges", false);
}

BpeDefinition read_tokenizer_json(const std::string& path) {
  Large json = parse_large_json(read_file(path), path);
  fail_input_if(!json.is_object() || !json.contains("model") || !json["model"].is_object(), "[", path,
                "] is not a tokenizer of Hugging Face: it has no \"model\"");
  Large model = std::move(json["model"]);
  json.erase("model");
  if (model.contains("type") && model["type"] != "BPE") {
    JsonReader(Json(model["type"].is_string() ? Large{{"type", model["type"]}} : Large::object()), path + ".model")
        .choice("type", {"BPE"});
  }
  BpeDefinition definition;
  Ids ids = read_vocabulary(model.value("vocab", Large()), path, definition);
  read_merges(model.value("merges", Large()), ids, path, definition);
  model.erase("vocab");
  model.erase("merges");
  read_added_tokens(json.value("added_tokens", Large()), path, ids, definition);
  read_model(JsonReader(Json(model), path + ".model"), ids, definition);
  const auto part = [&](const char* key) { return Json(json.value(key, Large())); };
  read_steps(part("normalizer"), path + ".normalizer", "normalizers", definition.normalizer, read_step<NormalizerStep>);
  read_steps(part("pre_tokenizer"), path + ".pre_tokenizer", "pretokenizers", definition.pre_tokenizer,
             read_pre_tokenizer_step);
  read_steps(part("decoder"), path + ".decoder", "decoders", definition.decoder, read_step<DecoderStep>);
  read_steps(part("post_processor"), path + ".post_processor", "processors", definition.special,
             [&](JsonReader& reader, SpecialTokens& special) { read_post_processor(reader, ids, special); });
  return definition;
}

// --- The files beside the tokenizer's own file.

Large optional_object(const std::string& path) {
  if (!std::filesystem::exists(path)) return Large::object();
  Large json = parse_large_json(read_file(path), path);
  fail_input_if(!json.is_object(), "[", path, "] expected an object { ... }");
  return json;
}

// The other files in the tokenizer's folder.
struct Neighbours {
  std::string folder;
  Large tokens_of_config, added_tokens;  // tokenizer_config.json's "added_tokens_decoder", added_tokens.json
  Json config, map;                      // the rest of tokenizer_config.json, special_tokens_map.json

  explicit Neighbours(std::string of)
      : folder(std::move(of)), added_tokens(optional_object(folder + "/added_tokens.json")) {
    Large all = optional_object(folder + "/tokenizer_config.json");
    if (all.contains("added_tokens_decoder")) {
      tokens_of_config = std::move(all["added_tokens_decoder"]);
      all.erase("added_tokens_decoder");
    }
    config = Json(all);
    map = Json(optional_object(folder + "/special_tokens_map.json"));
  }
};

// Accepts "</s>" and {"content": "</s>", ...}; "" if the key is absent.
std::string token_text(const Json& settings, const char* key) {
  const Json value = settings.value(key, Json());
  const Json text = value.is_object() ? value.value("content", Json()) : value;
  return text.is_string() ? text.get<std::string>() : "";
}

// The texts of all tokens that the files call special.
std::vector<std::string> special_texts(const Neighbours& beside) {
  std::vector<std::string> texts;
  for (const Json* settings : {&beside.config, &beside.map}) {
    for (const char* key :
         {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}) {
      texts.push_back(token_text(*settings, key));
    }
    for (const char* key : {"additional_special_tokens", "extra_special_tokens"}) {
      const Json list = settings->value(key, Json());
      for (const Json& item : list.is_array() ? list : Json::array()) texts.push_back(token_text({{"it", item}}, "it"));
    }
  }
  std::erase(texts, "");
  return texts;
}

// Adds tokens that the tokenizer's own file lacks, as transformers does: from tokenizer_config.json or, if it has none,
// from added_tokens.json.
void read_tokens_beside(const Neighbours& beside, BpeDefinition& definition) {
  if (beside.tokens_of_config.is_null() && beside.added_tokens.empty()) return;
  const std::vector<std::string> special = special_texts(beside);
  const auto is_special = [&](const std::string& text) { return std::ranges::find(special, text) != special.end(); };
  Ids ids;
  for (size_t id = 0; id < definition.tokens.size(); ++id) {
    if (!definition.tokens[id].empty()) ids.emplace(definition.tokens[id], static_cast<int32_t>(id));
  }
  std::map<int64_t, std::pair<AddedToken, std::string>> found;  // sorted by id; each with its place for messages
  const bool config = !beside.tokens_of_config.is_null();
  const std::string path = beside.folder + (config ? "/tokenizer_config.json" : "/added_tokens.json");
  fail_input_if(config && !beside.tokens_of_config.is_object(), "[", path,
                "] key \"added_tokens_decoder\": expected an object of ids and their tokens");
  for (const auto& [key, value] : (config ? beside.tokens_of_config : beside.added_tokens).items()) {
    const std::string place = concat(path, config ? ".added_tokens_decoder." : ".", key);
    if (config) {
      JsonReader id(Json{{"id", parse_json(key, place)}}, place), token(Json(value), place);
      AddedToken read = read_added_token(token, id.integer("id", 0, kMostTokens - 1));
      read.special |= is_special(read.text);
      found.insert({read.id, {std::move(read), place}});
    } else {
      JsonReader reader(Json{{"id", Json(value)}}, place);
      AddedToken read{static_cast<int32_t>(reader.integer("id", 0, kMostTokens - 1)), key, is_special(key)};
      read.normalized = !read.special;
      found.insert({read.id, {std::move(read), place}});
    }
  }
  for (auto& [id, token] : found) add_token(std::move(token.first), token.second, ids, definition);
}

int32_t id_of(const BpeDefinition& definition, const std::string& text) {
  const auto found = std::find(definition.tokens.begin(), definition.tokens.end(), text);
  return text.empty() || found == definition.tokens.end() ? -1
                                                          : static_cast<int32_t>(found - definition.tokens.begin());
}

// Reads the tokens with a role (begin, end, unknown, padding) by their names. Special tokens that are not added tokens
// become added tokens, as in transformers.
void read_roles(const Neighbours& beside, BpeDefinition& definition) {
  SpecialTokens& special = definition.special;
  const std::pair<const char*, int32_t*> roles[] = {{"bos_token", &special.begin},
                                                    {"eos_token", &special.end},
                                                    {"unk_token", &special.unknown},
                                                    {"pad_token", &special.padding}};
  for (const auto& [key, id] : roles) {
    std::string text = token_text(beside.config, key);
    if (text.empty()) text = token_text(beside.map, key);
    // RWKV's end token may be two line breaks, which stay a part of texts.
    const bool ordinary = definition.longest && id_of(definition, text) < 0;
    const int32_t found = id_of(definition, ordinary ? letters_of_bytes(text) : text);
    if (found >= 0) *id = found;
  }
  for (const std::string& text : special_texts(beside)) {
    const int32_t id = id_of(definition, text);
    const bool marked = std::ranges::find(definition.added, id, &AddedToken::id) != definition.added.end();
    if (id >= 0 && !marked) definition.added.push_back({id, text, true});
  }
}

// Reads eos_token_id, a number or a list. Skips ids beyond the vocabulary: such a file belongs to another model.
void read_stops(const Json& config, BpeDefinition& definition) {
  Json ids = config.value("eos_token_id", Json());
  if (ids.is_number_integer()) ids = Json::array({ids});
  for (const auto& id : ids.is_array() ? ids : Json::array()) {
    if (!id.is_number_integer() || id < 0 || id >= static_cast<int64_t>(definition.tokens.size())) continue;
    definition.special.stops.push_back(id.get<int32_t>());
    if (definition.special.end < 0) definition.special.end = id.get<int32_t>();
  }
}

BpeDefinition read_tokenizer_model(const Neighbours& beside, const std::string& path) {
  VocabularyMetadata metadata = read_sentencepiece_model(read_file(path), path);
  const auto flag = [&](const char* key) {
    const Json value = beside.config.value(key, Json());
    return value.is_boolean() ? std::optional(value.get<bool>()) : std::nullopt;
  };
  metadata.add_begin = flag("add_bos_token");
  metadata.add_end = flag("add_eos_token");
  return define_vocabulary(metadata, path);
}

}  // namespace

void hf_fields(JsonFields& json, NormalizerStep& step) {
  type_field(json, step.type, kNormalizers);
  if (step.type == "replace") replace_fields(json, step.pattern, step.text);
  if (step.type == "prepend") json.text("prepend", step.text);
}

void hf_fields(JsonFields& json, PreTokenizerStep& step) {
  type_field(json, step.type, kCuts);
  if (step.type == "metaspace") return metaspace_fields(json, step.mark, step.prepend, step.split);
  pattern_field(json, step.pattern, "Regex", "String");
  json.word("behavior", step.behavior, kBehaviors);
  flag_field(json, "invert", step.invert);
}

void hf_fields(JsonFields& json, DecoderStep& step) {
  type_field(json, step.type, kDecoders);
  if (step.type == "replace") replace_fields(json, step.pattern, step.text);
  if (step.type == "strip") {
    json.text("content", step.text);
    json.integer("start", step.start, 0, 1 << 20);
    json.integer("stop", step.stop, 0, 1 << 20);
  }
  if (step.type == "metaspace") {
    std::string prepend = step.drop_first ? "always" : "never";
    bool split = true;
    metaspace_fields(json, step.text, prepend, split);
    step.drop_first = prepend != "never";
  }
}

std::shared_ptr<Tokenizer> import_tokenizer(const std::string& folder) {
  const std::string json = folder + "/tokenizer.json", model = folder + "/tokenizer.model",
                    world = concat(folder, "/", kWorldVocabulary);
  const bool has_json = std::filesystem::exists(json);
  const bool has_model = std::filesystem::exists(model), has_world = std::filesystem::exists(world);
  fail_input_if(!has_json && !has_model && !has_world, "[", folder,
                "] has no tokenizer: expected tokenizer.json, tokenizer.model or ", kWorldVocabulary);
  const std::string& path = has_json ? json : has_model ? model : world;
  const Neighbours beside(folder);
  BpeDefinition definition = has_json    ? read_tokenizer_json(json)
                             : has_model ? read_tokenizer_model(beside, model)
                                         : read_world_vocabulary(read_file(world), world);
  read_tokens_beside(beside, definition);
  if (definition.longest) complete_world(definition);
  check_definition(definition, path);
  read_roles(beside, definition);
  for (const char* name : {"/generation_config.json", "/config.json"}) {
    read_stops(Json(optional_object(folder + name)), definition);
  }
  complete_special(definition, chat_templates_of(beside.folder, beside.config));
  return std::make_shared<BpeTokenizer>(std::move(definition), path);
}

}  // namespace cortado
