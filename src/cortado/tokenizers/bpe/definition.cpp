#include "cortado/tokenizers/bpe/definition.h"

#include <array>
#include <cmath>
#include <unordered_map>

#include "cortado/base/error.h"
#include "cortado/base/utf8.h"

namespace cortado {
namespace {

// The bytes that can be seen stand for themselves, the others for the characters from U+0100 on.
std::array<std::string, 256> make_letters() {
  std::array<std::string, 256> letters;
  uint32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool seen = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    append_utf8(letters[byte], seen ? byte : next++);
  }
  return letters;
}

// byte of a letter's code point, -1 for other characters.
const std::vector<int>& bytes_by_code() {
  static const std::vector<int> table = [] {
    std::vector<int> result(0x200, -1);
    for (int byte = 0; byte < 256; ++byte) {
      result[utf8_char(byte_letter(static_cast<unsigned char>(byte))).code] = byte;
    }
    return result;
  }();
  return table;
}

Json pattern_json(const Pattern& pattern) { return Json{{pattern.regex ? "regex" : "text", pattern.text}}; }

Pattern read_pattern(JsonReader& reader) {
  JsonReader inner(reader.object("pattern"), reader.place() + ".pattern");
  Pattern pattern;
  pattern.regex = inner.has("regex");
  pattern.text = inner.text(pattern.regex ? "regex" : "text");
  inner.finish();
  return pattern;
}

// Reads an array of objects, each by `read`.
template <typename Item>
std::vector<Item> read_list(JsonReader& reader, const std::string& key, Item (*read)(JsonReader&)) {
  std::vector<Item> items;
  const Json list = reader.any(key);
  if (!list.is_array()) reader.fail(concat("key \"", key, "\": expected a list"));
  for (size_t i = 0; i < list.size(); ++i) {
    JsonReader inner(list[i], concat(reader.place(), ".", key, "[", i, "]"));
    items.push_back(read(inner));
    inner.finish();
  }
  return items;
}

Json normalizer_json(const NormalizerStep& step) {
  Json json{{"type", step.type}};
  if (step.type == "replace") json["pattern"] = pattern_json(step.pattern);
  if (step.type == "replace" || step.type == "prepend") json["text"] = step.text;
  return json;
}

NormalizerStep read_normalizer(JsonReader& reader) {
  NormalizerStep step{reader.choice("type", {"nfc", "nfd", "nfkc", "nfkd", "replace", "prepend"})};
  if (step.type == "replace") step.pattern = read_pattern(reader);
  if (step.type == "replace" || step.type == "prepend") step.text = reader.text("text");
  return step;
}

Json pre_tokenizer_json(const PreTokenizerStep& step) {
  Json json{{"type", step.type}};
  if (step.type == "split") {
    json["pattern"] = pattern_json(step.pattern);
    json["behavior"] = step.behavior;
    json["invert"] = step.invert;
  } else if (step.type == "metaspace") {
    json["mark"] = step.mark;
    json["prepend"] = step.prepend;
    json["split"] = step.split;
  }
  return json;
}

PreTokenizerStep read_pre_tokenizer(JsonReader& reader) {
  PreTokenizerStep step{reader.choice("type", {"split", "metaspace", "prefix_space", "bytes"})};
  if (step.type == "split") {
    step.pattern = read_pattern(reader);
    step.behavior =
        reader.choice("behavior", {"removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"});
    step.invert = reader.boolean("invert");
  } else if (step.type == "metaspace") {
    step.mark = reader.text("mark");
    step.prepend = reader.choice("prepend", {"always", "first", "never"});
    step.split = reader.boolean("split");
  }
  return step;
}

Json decoder_json(const DecoderStep& step) {
  Json json{{"type", step.type}};
  if (step.type == "replace") json["pattern"] = pattern_json(step.pattern);
  if (step.type != "bytes" && step.type != "byte_fallback") json["text"] = step.text;
  if (step.type == "metaspace") json["drop_first"] = step.drop_first;
  if (step.type == "strip") {
    json["start"] = step.start;
    json["stop"] = step.stop;
  }
  return json;
}

DecoderStep read_decoder(JsonReader& reader) {
  DecoderStep step{reader.choice("type", {"replace", "byte_fallback", "bytes", "metaspace", "strip"})};
  if (step.type == "replace") step.pattern = read_pattern(reader);
  if (step.type != "bytes" && step.type != "byte_fallback") step.text = reader.text("text");
  if (step.type == "metaspace") step.drop_first = reader.boolean("drop_first");
  if (step.type == "strip") {
    step.start = reader.integer("start", 0, 1 << 20);
    step.stop = reader.integer("stop", 0, 1 << 20);
  }
  return step;
}

Json added_json(const AddedToken& token) {
  return Json{{"id", token.id},
              {"text", token.text},
              {"special", token.special},
              {"normalized", token.normalized},
              {"lstrip", token.lstrip},
              {"rstrip", token.rstrip},
              {"single_word", token.single_word},
              {"apart", token.apart}};
}

AddedToken read_added(JsonReader& reader) {
  AddedToken token;
  token.id = static_cast<int32_t>(reader.integer("id", 0, kMostTokens));
  token.text = reader.text("text");
  token.special = reader.boolean("special");
  token.normalized = reader.boolean("normalized");
  token.lstrip = reader.boolean("lstrip");
  token.rstrip = reader.boolean("rstrip");
  token.single_word = reader.boolean("single_word");
  token.apart = reader.boolean("apart");
  return token;
}

Json id_json(int32_t id) { return id < 0 ? Json() : Json(id); }

int32_t read_id(JsonReader& reader, const std::string& key) {
  return static_cast<int32_t>(reader.optional_integer(key, 0, kMostTokens).value_or(-1));
}

std::vector<int32_t> read_ids(JsonReader& reader, const std::string& key) {
  const Json list = reader.any(key);
  std::vector<int32_t> ids;
  for (const auto& item : list.is_array() ? list : Json::array({Json()})) {
    if (!item.is_number_integer() || item < 0 || item > kMostTokens) {
      reader.fail(concat("key \"", key, "\": expected a list of token ids"));
    }
    ids.push_back(item.get<int32_t>());
  }
  return ids;
}

Json special_json(const SpecialTokens& special) {
  Json json{{"begin", id_json(special.begin)},
            {"end", id_json(special.end)},
            {"unknown", id_json(special.unknown)},
            {"padding", id_json(special.padding)},
            {"prefix", special.prefix},
            {"suffix", special.suffix},
            {"stops", special.stops}};
  if (!special.chat.name.empty()) json["chat"] = Json{{"name", special.chat.name}, {"system", special.chat.system}};
  return json;
}

SpecialTokens read_special(JsonReader reader) {
  SpecialTokens special;
  special.begin = read_id(reader, "begin");
  special.end = read_id(reader, "end");
  special.unknown = read_id(reader, "unknown");
  special.padding = read_id(reader, "padding");
  special.prefix = read_ids(reader, "prefix");
  special.suffix = read_ids(reader, "suffix");
  special.stops = read_ids(reader, "stops");
  if (reader.has("chat")) {
    JsonReader chat(reader.object("chat"), reader.place() + ".chat");
    special.chat.name = chat.text("name");
    special.chat.system = chat.text("system");
    chat.finish();
  }
  reader.finish();
  return special;
}

template <typename Step>
Json list_json(const std::vector<Step>& steps, Json (*to_json)(const Step&)) {
  Json list = Json::array();
  for (const auto& step : steps) list.push_back(to_json(step));
  return list;
}

}  // namespace

const std::string& byte_letter(unsigned char byte) {
  static const std::array<std::string, 256> letters = make_letters();
  return letters[byte];
}

bool bytes_of_letters(std::string_view text, std::string& bytes) {
  const auto& table = bytes_by_code();
  bytes.clear();
  while (!text.empty()) {
    const Utf8Char c = utf8_char(text);
    if (c.length == 0 || c.code >= table.size() || table[c.code] < 0) return false;
    bytes += static_cast<char>(table[c.code]);
    text.remove_prefix(static_cast<size_t>(c.length));
  }
  return !bytes.empty();
}

nlohmann::json parse_large_json(const std::string& text, const std::string& source_name) {
  check_json_depth(text, source_name);
  try {
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::exception&) {
    parse_json(text, source_name);  // says where, in our words
    throw InputError(concat("[", source_name, "] is not valid JSON"));
  }
}

Json settings_json(const BpeDefinition& definition) {
  return Json{{"unknown", id_json(definition.unknown)},
              {"byte_fallback", definition.byte_fallback},
              {"fuse_unknown", definition.fuse_unknown},
              {"ignore_merges", definition.ignore_merges},
              {"normalizer", list_json(definition.normalizer, normalizer_json)},
              {"pre_tokenizer", list_json(definition.pre_tokenizer, pre_tokenizer_json)},
              {"decoder", list_json(definition.decoder, decoder_json)},
              {"special", special_json(definition.special)},
              {"added", list_json(definition.added, added_json)}};
}

void read_settings(JsonReader& reader, BpeDefinition& definition) {
  definition.unknown = read_id(reader, "unknown");
  definition.byte_fallback = reader.boolean("byte_fallback");
  definition.fuse_unknown = reader.boolean("fuse_unknown");
  definition.ignore_merges = reader.boolean("ignore_merges");
  definition.normalizer = read_list(reader, "normalizer", read_normalizer);
  definition.pre_tokenizer = read_list(reader, "pre_tokenizer", read_pre_tokenizer);
  definition.decoder = read_list(reader, "decoder", read_decoder);
  definition.special = read_special(JsonReader(reader.object("special"), reader.place() + ".special"));
  definition.added = read_list(reader, "added", read_added);
}

// One line each: pieces in their order, then the flat list of pairs or the scores.
std::string pieces_json(const BpeDefinition& definition) {
  Json ranks = Json::array();
  for (const auto& [left, right] : definition.merges) {
    ranks.push_back(left);
    ranks.push_back(right);
  }
  for (const float score : definition.scores) ranks.push_back(std::isnan(score) ? Json() : Json(score));
  const char* name = definition.scores.empty() ? "merges" : "scores";
  return concat("{\"tokens\":", Json(definition.tokens).dump(), ",\n\"", name, "\":", ranks.dump(), "}\n");
}

void read_pieces(const std::string& text, const std::string& path, BpeDefinition& definition) {
  const nlohmann::json json = parse_large_json(text, path);
  const bool scored = json.is_object() && json.contains("scores");
  const char* name = scored ? "scores" : "merges";
  fail_input_if(!json.is_object() || json.size() != 2 || !json.contains("tokens") || !json.contains(name), "[", path,
                "] expected \"tokens\" and \"merges\" or \"scores\"");
  try {
    definition.tokens = json["tokens"].get<std::vector<std::string>>();
    if (scored) {
      for (const auto& score : json[name]) definition.scores.push_back(score.is_null() ? NAN : score.get<float>());
    } else {
      const auto flat = json[name].get<std::vector<int32_t>>();
      fail_input_if(flat.size() % 2 != 0, "[", path, "] \"merges\": expected pairs of ids, got ", flat.size(), " ids");
      for (size_t i = 0; i < flat.size(); i += 2) definition.merges.emplace_back(flat[i], flat[i + 1]);
    }
  } catch (const nlohmann::json::exception&) {
    throw InputError(concat("[", path, "] expected a list of texts and a list of numbers"));
  }
}

void check_definition(const BpeDefinition& definition, const std::string& place) {
  const auto count = static_cast<int64_t>(definition.tokens.size());
  fail_input_if(count == 0 || count > kMostTokens, "[", place, "] expected 1 to ", kMostTokens, " tokens, got ", count);
  const auto check = [&](const char* what, int32_t id) {
    const bool known = id >= 0 && id < count && !definition.tokens[static_cast<size_t>(id)].empty();
    fail_input_if(!known, "[", place, "] ", what, ": there is no token ", id, " among the ", count);
  };
  const auto check_if = [&](const char* what, int32_t id) {
    if (id >= 0) check(what, id);
  };
  for (int64_t id = 0; id < count; ++id) {
    const std::string& token = definition.tokens[static_cast<size_t>(id)];
    fail_input_if(utf8_valid_prefix(token) != token.size(), "[", place, "] token ", id, " is not UTF-8");
  }
  for (const auto& [left, right] : definition.merges) {
    check("merges", left);
    check("merges", right);
  }
  fail_input_if(!definition.scores.empty() && definition.scores.size() != definition.tokens.size(), "[", place,
                "] there are ", count, " tokens, and ", definition.scores.size(), " scores");
  for (const AddedToken& token : definition.added) check("added token", token.id);
  const SpecialTokens& special = definition.special;
  check_if("unknown", definition.unknown);
  check_if("special.begin", special.begin);
  check_if("special.end", special.end);
  check_if("special.unknown", special.unknown);
  check_if("special.padding", special.padding);
  for (const auto* ids : {&special.prefix, &special.suffix, &special.stops}) {
    for (const int32_t id : *ids) check("special", id);
  }
}

}  // namespace cortado
