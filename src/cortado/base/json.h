// Strict reading of JSON objects: every key must be known, every type and range right, and an error names the place.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "cortado/base/error.h"

namespace cortado {

using Json = nlohmann::ordered_json;

// Parses a file or a text; errors are InputError with file name, line and column, in one line.
Json read_json_file(const std::string& path);
Json parse_json(std::string_view text, const std::string& source_name);

// InputError: lists and objects lie in one another deeper than any file of ours has them. To be asked before a text is
// parsed by other means: nlohmann-json writes, compares and copies recursively, and a stack would end.
void check_json_depth(std::string_view text, const std::string& source_name);

// Reads one JSON object key by key, remembering which keys it was asked for; `finish` refuses the others.
//
//   JsonReader reader(json, "config.feed_forward");
//   auto type = reader.choice("type", {"mlp", "swiglu", "geglu"}, "mlp");
//   auto dim = reader.integer("dim", 1, 1 << 20);            // required: no default given
//   reader.finish();                                          // [config.feed_forward] unknown key "dmi"; did you mean
//   "dim"?
class JsonReader {
 public:
  JsonReader(const Json& object, std::string place);

  bool has(const std::string& key) const;                                    // present and not null
  bool says(const std::string& key) const { return object_.contains(key); }  // present, null included

  // What earlier versions called a key, or a word that is a key's value: read as what it is called now. To be said
  // before the key is asked for.
  void renamed(const std::string& earlier, const std::string& key);
  void renamed_word(const std::string& key, const std::string& earlier, const std::string& word);

  // Without a default the key is required. Limits are inclusive.
  int64_t integer(const std::string& key, int64_t low, int64_t high, std::optional<int64_t> fallback = {});
  double number(const std::string& key, double low, double high, std::optional<double> fallback = {});
  bool boolean(const std::string& key, std::optional<bool> fallback = {});
  std::string text(const std::string& key, std::optional<std::string> fallback = {});
  std::string choice(const std::string& key, const std::vector<std::string>& allowed,
                     std::optional<std::string> fallback = {});
  // null or absent -> nullopt.
  std::optional<int64_t> optional_integer(const std::string& key, int64_t low, int64_t high);
  // null -> nullopt, absent -> the fallback.
  std::optional<int64_t> integer_or_null(const std::string& key, int64_t low, int64_t high, int64_t fallback);
  std::optional<double> optional_number(const std::string& key, double low, double high);
  // The value itself, unread; an empty object where absent.
  Json object(const std::string& key);
  // The value whatever its type; null where absent.
  Json any(const std::string& key);

  // Throws InputError if the object has a key nobody asked for (naming the nearest known one).
  void finish() const;

  // What was asked for, in its order: a key, in words what it may be, and what it is where it is absent (null: required,
  // or something that no value says). `words`: all that it may be.
  struct Question {
    std::string key, expected;
    Json fallback;
    std::vector<std::string> words = {};
  };
  const std::vector<Question>& questions() const { return questions_; }

  const std::string& place() const { return place_; }
  // Throws InputError("[place] ...") with the parts joined; fail_if: where it is bad.
  template <typename... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    throw InputError(concat("[", place_, "] ", parts...));
  }
  template <typename... Parts>
  void fail_if(bool bad, const Parts&... parts) const {
    if (bad) fail(parts...);
  }

 private:
  const Json* find(const std::string& key);
  void note(const std::string& key, std::string expected, Json fallback = nullptr, std::vector<std::string> words = {});
  Json object_;
  std::string place_;
  std::set<std::string> asked_;
  std::vector<Question> questions_;
};

// The entry of `known` nearest to `word` by edit distance, or "" when none is near.
std::string nearest_word(const std::string& word, const std::vector<std::string>& known);

}  // namespace cortado
