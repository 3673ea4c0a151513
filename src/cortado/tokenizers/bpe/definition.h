// What a byte-pair tokenizer is made of, as plain data: what imports fill in and tokenizer.json holds.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cortado/base/fields.h"
#include "cortado/tokenizers/tokenizer.h"

namespace cortado {

inline constexpr int64_t kMostTokens = int64_t{1} << 21;

// What to look for in a text: the text itself, or a regular expression.
struct Pattern {
  std::string text;
  bool regex = false;
};

// As JSON: {"regex": ...} or {"text": ...}.
void pattern_field(JsonFields& json, Pattern& pattern, const char* regex = "regex", const char* text = "text");

// Changes the text before it is cut. `type`: "nfc", "nfd", "nfkc", "nfkd"; "replace" (pattern by text); "prepend"
// (text).
struct NormalizerStep {
  std::string type;
  Pattern pattern = {};
  std::string text = {};
};

// Cuts the text into words, which no merge crosses. `type`:
//   "split"         at every match of `pattern` (with `invert`: between the matches). What becomes of a match is
//                   `behavior`: "removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"
//   "metaspace"     spaces become `mark`; a mark goes in front, `prepend`: "always", "first" (only of the text's very
//                   beginning), "never"; with `split` a word begins at every mark
//   "prefix_space"  a space goes in front of what has none
//   "bytes"         last: the symbols to merge are bytes, not characters
struct PreTokenizerStep {
  std::string type;
  Pattern pattern = {};
  std::string behavior = "isolated";
  bool invert = false;
  std::string mark = {};
  std::string prepend = "never";
  bool split = true;
};

// From a token's text to what it stands for. `type`: "replace" (pattern by text), "byte_fallback" ("<0x41>" is a byte),
// "bytes" (GPT-2's letters for bytes), "metaspace" (`text`, the mark, becomes a space; those of the first token vanish
// with `drop_first`), "strip" (up to `start` times `text` at the beginning of the whole and up to `stop` times at its
// end).
struct DecoderStep {
  std::string type;
  Pattern pattern = {};
  std::string text = {};
  bool drop_first = false;
  int64_t start = 0, stop = 0;
};

// A token that is found in the text before anything else: `normalized` in the normalised text, otherwise in the text as
// it is. With lstrip and rstrip it takes the white space around it along; with single_word it must not touch letters.
struct AddedToken {
  int32_t id = 0;
  std::string text;
  bool special = false, normalized = false, lstrip = false, rstrip = false, single_word = false;
  bool apart = false;  // no symbol and no result of a merge, even where its text is met
};

struct BpeDefinition {
  std::vector<std::string> tokens;  // by id; empty: nobody has this id. With "bytes": in GPT-2's letters
  // Which neighbours become one: pairs of ids, earlier ones first; or, when there are none, the scores: two neighbours
  // become the token that is their texts together, that of the highest score first. NaN: not by merging.
  std::vector<std::pair<int32_t, int32_t>> merges;
  std::vector<float> scores;
  int32_t unknown = -1;  // stands for a character without token; -1: such characters vanish
  bool byte_fallback = false, fuse_unknown = false;
  bool ignore_merges = false;  // a word that is a token is that token
  std::vector<NormalizerStep> normalizer;
  std::vector<PreTokenizerStep> pre_tokenizer;
  std::vector<AddedToken> added;
  std::vector<DecoderStep> decoder;
  SpecialTokens special;
};

// The settings (tokenizer.json) and the tables (pieces.json) of a definition.
void settings_fields(JsonFields& json, BpeDefinition& definition);
std::string pieces_json(const BpeDefinition& definition);
void read_pieces(const std::string& text, const std::string& path, BpeDefinition& definition);

// Throws InputError("[place] ...") unless every id is one of a token, and texts are UTF-8.
void check_definition(const BpeDefinition& definition, const std::string& place);

// JSON with objects of many keys, which Json (that keeps their order) takes quadratic time for. Errors as parse_json's.
nlohmann::json parse_large_json(const std::string& text, const std::string& source_name);

// GPT-2's letters: every byte as a character that can be seen.
const std::string& byte_letter(unsigned char byte);
// The bytes that the letters stand for; false when `text` has other characters too.
bool bytes_of_letters(std::string_view text, std::string& bytes);

}  // namespace cortado
