// Strict reading of JSON objects: unknown keys, wrong types and values out of range are errors that name the place.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "cortado/base/error.h"

namespace cortado {

// Objects keep the order in which their keys were inserted.
using Json = nlohmann::ordered_json;

// Parse a file or a text. Errors are InputError with file name, line and column in one line.
Json read_json_file(const std::string& path);
Json parse_json(std::string_view text, const std::string& source_name);

// Throws InputError if lists and objects are nested more than 200 deep. Call it before other code parses the text:
// nlohmann-json writes, compares and copies recursively and would overflow the stack.
void check_json_depth(std::string_view text, const std::string& source_name);

// Shows a value in an error message: short, on one line, and printable whatever bytes it holds.
std::string excerpt(const Json& value);

// Reads one JSON object key by key and remembers the keys it was asked for; `finish` refuses the others.
//
//   JsonReader reader(json, "config.feed_forward");
//   auto type = reader.choice("type", {"mlp", "swiglu", "geglu"}, "mlp");
//   auto dim = reader.integer("dim", 1, 1 << 20);            // required: no default given
//   reader.finish();                                          // [config.feed_forward] unknown key "dmi"; did you mean
//   "dim"?
class JsonReader {
 public:
  JsonReader(const Json& object, std::string place);
  virtual ~JsonReader() = default;

  bool has(const std::string& key) const;                                     // present and not null
  bool says(const std::string& key) const { return object_->contains(key); }  // present, null included

  // Accept what earlier versions wrote: `renamed` reads a former key as `key`; `renamed_word` reads a former value of
  // `key` as `word`. Call them before the key is read.
  void renamed(const std::string& earlier, const std::string& key);
  void renamed_word(const std::string& key, const std::string& earlier, const std::string& word);

  // Read a value. Without a fallback the key is required. Limits are inclusive.
  int64_t integer(const std::string& key, int64_t low, int64_t high, std::optional<int64_t> fallback = {});
  double number(const std::string& key, double low, double high, std::optional<double> fallback = {});
  bool boolean(const std::string& key, std::optional<bool> fallback = {});
  std::string text(const std::string& key, std::optional<std::string> fallback = {});
  std::string choice(const std::string& key, const std::vector<std::string>& allowed,
                     std::optional<std::string> fallback = {});
  // null and an absent key give nullopt.
  std::optional<int64_t> optional_integer(const std::string& key, int64_t low, int64_t high);
  // null gives nullopt; an absent key gives the fallback.
  std::optional<int64_t> integer_or_null(const std::string& key, int64_t low, int64_t high, int64_t fallback);
  std::optional<double> optional_number(const std::string& key, double low, double high);
  std::optional<std::string> optional_text(const std::string& key);
  // Returns the value unchecked; an empty object if the key is absent.
  Json object(const std::string& key);
  // Returns the value, of any type; null if the key is absent.
  const Json& any(const std::string& key);

  // Throws InputError if the object has a key that nobody asked for, and names the nearest known key.
  void finish() const;

  // One key that was asked for: its name, the expected value in words, the default (null: the key is required, or its
  // default has no JSON form), and, for a choice, the allowed words. In the order of asking.
  struct Question {
    std::string key, expected;
    Json fallback;
    std::vector<std::string> words = {};
  };
  const std::vector<Question>& questions() const { return questions_; }

  const std::string& place() const { return place_; }
  // `fail` throws InputError("[place] ...") with the parts joined; `fail_if` does so if `bad`.
  template <typename... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    throw InputError(concat("[", place_, "] ", parts...));
  }
  template <typename... Parts>
  void fail_if(bool bad, const Parts&... parts) const {
    if (bad) fail(parts...);
  }

 protected:
  // Reads an object in place; it must outlive the reader.
  JsonReader(std::shared_ptr<const Json> object, std::string place)
      : object_(std::move(object)), place_(std::move(place)) {}

  // The value of a key; null where it is absent or null.
  virtual const Json* look(const std::string& key) const;
  // Throws for a value that is not what was expected; null: it is missing. `hint`: the message's end.
  [[noreturn]] virtual void refuse(const std::string& key, const Json* value, const std::string& expected,
                                   const std::string& hint = "") const;

  std::shared_ptr<const Json> object_;
  std::set<std::string> asked_;

 private:
  const Json* find(const std::string& key);
  void note(const std::string& key, std::string expected, Json fallback = nullptr, std::vector<std::string> words = {});
  std::string place_;
  std::vector<Question> questions_;
};

// Returns the entry of `known` with the smallest edit distance to `word`, or "" if none is near.
std::string nearest_word(const std::string& word, const std::vector<std::string>& known);

}  // namespace cortado
