// Names of enumeration values in configs, options and files.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cortado/base/json.h"

namespace cortado {

// Returns "a, b or c"; `quote` is put around each word.
std::string alternatives(const std::vector<std::string>& words, std::string_view quote = "");

// Returns the words with `separator` between them.
std::string joined(const std::vector<std::string>& words, std::string_view separator);

// Returns the index of `word` in `known` (at least two words). Throws InputError (PLACE must be "a", "b" or "c", got
// "d") if it is not there.
size_t word_index(std::string_view word, const std::vector<std::string>& known, std::string_view place);

// The values of an enumeration with their names. Values and names are unique.
template <typename Enum>
using Words = std::vector<std::pair<std::string, Enum>>;

// Returns the names in their order.
template <typename Enum>
std::vector<std::string> names_in(const Words<Enum>& words) {
  std::vector<std::string> names;
  for (const auto& [name, value] : words) names.push_back(name);
  return names;
}

// Returns the value of that name. Throws word_index's InputError.
template <typename Enum>
Enum value_of(const Words<Enum>& words, std::string_view name, std::string_view place) {
  return words[word_index(name, names_in(words), place)].second;
}

// Returns the name of a value, which must be in `words`.
template <typename Enum>
const std::string& name_of(const Words<Enum>& words, const Enum& wanted) {
  for (const auto& [name, value] : words) {
    if (value == wanted) return name;
  }
  throw std::logic_error("an enumeration's value without a name");
}

// Reads the name under `key` from the object and returns its value.
template <typename Enum>
Enum choose(JsonReader& reader, const std::string& key, const Words<Enum>& words, const std::string& fallback) {
  return value_of(words, reader.choice(key, names_in(words), fallback), key);
}

}  // namespace cortado
