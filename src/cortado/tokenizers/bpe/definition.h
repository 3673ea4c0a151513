// The definition of a byte-pair tokenizer as plain data. Imports fill it in; tokenizer.json and pieces.json store it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cortado/base/fields.h"
#include "cortado/tokenizers/tokenizer.h"

namespace cortado {

inline constexpr int64_t kMostTokens = int64_t{1} << 21;

// A pattern to search in a text: a plain text or a regular expression.
struct Pattern {
  std::string text;
  bool regex = false;
};

// Reads or writes a pattern as JSON: {"regex": ...} or {"text": ...}.
void pattern_field(JsonFields& json, Pattern& pattern, const char* regex = "regex", const char* text = "text");

// Changes the text before it is cut into words. `type`: "nfc", "nfd", "nfkc", "nfkd"; "replace" (`pattern` by `text`);
// "prepend" (`text`).
struct NormalizerStep {
  std::string type;
  Pattern pattern = {};
  std::string text = {};
};

// Cuts the text into words, which no merge crosses. `type`:
//   "split"         at every match of `pattern` (with `invert`: between the matches). `behavior` says what happens to a
//                   match: "removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"
//   "metaspace"     replaces spaces by `mark`, and puts a mark in front according to `prepend`: "always", "first" (only
//                   at the beginning of the whole text), "never"; with `split`, a word begins at every mark
//   "prefix_space"  puts a space in front of words that have none
//   "bytes"         must be last: the symbols to merge are bytes, not characters
struct PreTokenizerStep {
  std::string type;
  Pattern pattern = {};
  std::string behavior = "isolated";
  bool invert = false;
  std::string mark = {};
  std::string prepend = "never";
  bool split = true;
};

// Converts the text of a token to the text that it stands for. `type`: "replace" (`pattern` by `text`), "byte_fallback"
// ("<0x41>" is a byte), "bytes" (GPT-2's letters for bytes), "metaspace" (the mark `text` becomes a space; with
// `drop_first`, the marks of the first token vanish), "strip" (removes `text` up to `start` times at the beginning of
// the whole text and up to `stop` times at its end).
struct DecoderStep {
  std::string type;
  Pattern pattern = {};
  std::string text = {};
  bool drop_first = false;
  int64_t start = 0, stop = 0;
};

// A token that is found in the text before anything else: in the normalised text if `normalized`, otherwise in the
// original text. With lstrip and rstrip it absorbs the white space around it; with single_word it must not touch
// letters.
struct AddedToken {
  int32_t id = 0;
  std::string text;
  bool special = false, normalized = false, lstrip = false, rstrip = false, single_word = false;
  bool apart = false;  // never a symbol or the result of a merge, even if a word contains its text
};

struct BpeDefinition {
  std::vector<std::string> tokens;  // by id; empty for an unused id. With "bytes": in GPT-2's letters
  // Pairs of ids that merge, the earliest first. If there are no pairs, `scores` decide: two neighbours merge if their
  // joined text is a token, the highest score first. NaN: the token takes no part in merges.
  std::vector<std::pair<int32_t, int32_t>> merges;
  std::vector<float> scores;
  int32_t unknown = -1;  // token for a character without a token; -1: such characters vanish
  bool byte_fallback = false, fuse_unknown = false;
  bool ignore_merges = false;  // a word that is a token is not split further
  bool longest = false;        // RWKV's World: in place of merges, the longest token at each place, from left to right
  std::vector<NormalizerStep> normalizer;
  std::vector<PreTokenizerStep> pre_tokenizer;
  std::vector<AddedToken> added;
  std::vector<DecoderStep> decoder;
  SpecialTokens special;
};

// settings_fields reads and writes the settings (tokenizer.json); the other two write and read the tables
// (pieces.json).
void settings_fields(JsonFields& json, BpeDefinition& definition);
std::string pieces_json(const BpeDefinition& definition);
void read_pieces(const std::string& text, const std::string& path, BpeDefinition& definition);

// Throws InputError "[place] ..." unless all ids belong to tokens and all texts are UTF-8.
void check_definition(const BpeDefinition& definition, const std::string& place);

// Parses JSON with large objects; Json keeps the order of keys and would need quadratic time. Errors are those of
// parse_json.
nlohmann::json parse_large_json(const std::string& text, const std::string& source_name);

// GPT-2's letters: each byte as a visible character.
const std::string& byte_letter(unsigned char byte);
std::string letters_of_bytes(std::string_view bytes);
// Converts letters back to bytes; false if `text` has other characters.
bool bytes_of_letters(std::string_view text, std::string& bytes);

}  // namespace cortado
