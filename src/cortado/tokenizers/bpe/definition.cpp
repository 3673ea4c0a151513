#include "cortado/tokenizers/bpe/definition.h"

#include <array>
#include <cmath>

#include "cortado/base/error.h"
#include "cortado/base/utf8.h"
#include "cortado/tokenizers/chat.h"

namespace cortado {
namespace {

// Visible bytes stand for themselves, the others for the characters from U+0100 on.
std::array<std::string, 256> make_letters() {
  std::array<std::string, 256> letters;
  uint32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool seen = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    append_utf8(letters[byte], seen ? byte : next++);
  }
  return letters;
}

// Indexed by code point: the byte that a letter stands for, -1 for other characters.
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

void normalizer_fields(JsonFields& json, NormalizerStep& step) {
  json.choice("type", step.type, {"nfc", "nfd", "nfkc", "nfkd", "replace", "prepend"});
  if (step.type == "replace") pattern_field(json, step.pattern);
  if (step.type == "replace" || step.type == "prepend") json.text("text", step.text);
}

void pre_tokenizer_fields(JsonFields& json, PreTokenizerStep& step) {
  json.choice("type", step.type, {"split", "metaspace", "prefix_space", "bytes"});
  if (step.type == "split") {
    pattern_field(json, step.pattern);
    json.choice("behavior", step.behavior,
                {"removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"});
    json.boolean("invert", step.invert);
  } else if (step.type == "metaspace") {
    json.text("mark", step.mark);
    json.choice("prepend", step.prepend, {"always", "first", "never"});
    json.boolean("split", step.split);
  }
}

void decoder_fields(JsonFields& json, DecoderStep& step) {
  json.choice("type", step.type, {"replace", "byte_fallback", "bytes", "metaspace", "strip"});
  if (step.type == "replace") pattern_field(json, step.pattern);
  if (step.type != "bytes" && step.type != "byte_fallback") json.text("text", step.text);
  if (step.type == "metaspace") json.boolean("drop_first", step.drop_first);
  if (step.type == "strip") {
    json.integer("start", step.start, 0, 1 << 20);
    json.integer("stop", step.stop, 0, 1 << 20);
  }
}

void added_fields(JsonFields& json, AddedToken& token) {
  json.integer("id", token.id, 0, kMostTokens);
  json.text("text", token.text);
  json.boolean("special", token.special);
  json.boolean("normalized", token.normalized);
  json.boolean("lstrip", token.lstrip);
  json.boolean("rstrip", token.rstrip);
  json.boolean("single_word", token.single_word);
  json.boolean("apart", token.apart);
}

// JSON null means -1.
void id_field(JsonFields& json, const std::string& key, int32_t& id) {
  Json value = id < 0 ? Json() : Json(id);
  json.field(key, value, [&](JsonReader& reader) { return reader.optional_integer(key, 0, kMostTokens).value_or(-1); });
  if (json.reading()) id = value.get<int32_t>();
}

void chat_fields(JsonFields& json, ChatTemplates& chat) {
  if (json.reading() && json.has("name")) {  // earlier versions stored the name of a style
    std::string name, system, problem;
    json.text("name", name);
    json.text("system", system);
    if (json.has("problem")) json.text("problem", problem);
    chat.text = known_chat_template(name, system);
    return;
  }
  json.text("template", chat.text);
  if (json.reading() ? !json.has("named") : chat.named.empty()) return;
  json.list("named", chat.named, [](JsonFields& entry, std::pair<std::string, std::string>& named) {
    entry.text("name", named.first);
    entry.text("template", named.second);
  });
}

void special_fields(JsonFields& json, SpecialTokens& special) {
  id_field(json, "begin", special.begin);
  id_field(json, "end", special.end);
  id_field(json, "unknown", special.unknown);
  id_field(json, "padding", special.padding);
  json.values("prefix", special.prefix, "token ids");
  json.values("suffix", special.suffix, "token ids");
  json.values("stops", special.stops, "token ids");
  if (json.reading() ? json.has("chat") : special.chat.taught()) {
    json.object("chat", [&](JsonFields& chat) { chat_fields(chat, special.chat); });
  }
}

}  // namespace

void pattern_field(JsonFields& json, Pattern& pattern, const char* regex, const char* text) {
  json.object("pattern", [&](JsonFields& inner) {
    if (inner.reading()) pattern.regex = inner.has(regex);
    inner.text(pattern.regex ? regex : text, pattern.text);
  });
}

const std::string& byte_letter(unsigned char byte) {
  static const std::array<std::string, 256> letters = make_letters();
  return letters[byte];
}

std::string letters_of_bytes(std::string_view bytes) {
  std::string letters;
  for (const char byte : bytes) letters += byte_letter(static_cast<unsigned char>(byte));
  return letters;
}

bool bytes_of_letters(std::string_view text, std::string& bytes) {
  const auto& table = bytes_by_code();
  bytes.clear();
  while (!text.empty()) {
    const Utf8Char c = utf8_char(text);
    if (c.length == 0 || c.code >= table.size() || table[c.code] < 0) return false;
    bytes += static_cast<char>(table[c.code]);
    text.remove_prefix(c.length);
  }
  return !bytes.empty();
}

nlohmann::json parse_large_json(const std::string& text, const std::string& source_name) {
  check_json_depth(text, source_name);
  try {
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::exception&) {
    parse_json(text, source_name);  // throws an error that names the line
    throw InputError(concat("[", source_name, "] is not valid JSON"));
  }
}

void settings_fields(JsonFields& json, BpeDefinition& definition) {
  id_field(json, "unknown", definition.unknown);
  json.boolean("byte_fallback", definition.byte_fallback);
  json.boolean("fuse_unknown", definition.fuse_unknown);
  json.boolean("ignore_merges", definition.ignore_merges);
  if (json.reading() ? json.has("longest") : definition.longest) json.boolean("longest", definition.longest);
  json.list("normalizer", definition.normalizer, normalizer_fields);
  json.list("pre_tokenizer", definition.pre_tokenizer, pre_tokenizer_fields);
  json.list("decoder", definition.decoder, decoder_fields);
  json.object("special", [&](JsonFields& special) { special_fields(special, definition.special); });
  json.list("added", definition.added, added_fields);
}

// One line for the tokens, one for the flat list of merge pairs or the scores.
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
    const bool known = id >= 0 && id < count && !definition.tokens[id].empty();
    fail_input_if(!known, "[", place, "] ", what, ": there is no token ", id, " among the ", count);
  };
  const auto check_if = [&](const char* what, int32_t id) {
    if (id >= 0) check(what, id);
  };
  for (int64_t id = 0; id < count; ++id) {
    const std::string& token = definition.tokens[id];
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
