// Enumerations and their names in configs, options and files.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cortado/base/json.h"

namespace cortado {

// "a, b or c", each between quotes if so wished.
std::string alternatives(const std::vector<std::string>& words, std::string_view quote = "");

// The words, one after the other, separated.
std::string joined(const std::vector<std::string>& words, std::string_view separator);

// Where `word` stands among the known ones (at least two). InputError "PLACE must be "a", "b" or "c", got "d"" if it
// does not.
size_t word_index(std::string_view word, const std::vector<std::string>& known, std::string_view place);

// The values of an enumeration with their names, each value and each name once.
template <typename Enum>
using Words = std::vector<std::pair<std::string, Enum>>;

template <typename Enum>
std::vector<std::string> names_in(const Words<Enum>& words) {
  std::vector<std::string> names;
  for (const auto& [name, value] : words) names.push_back(name);
  return names;
}

// The value of that name; InputError as of word_index.
template <typename Enum>
Enum value_of(const Words<Enum>& words, std::string_view name, std::string_view place) {
  return words[word_index(name, names_in(words), place)].second;
}

template <typename Enum>
const std::string& name_of(const Words<Enum>& words, Enum wanted) {
  for (const auto& [name, value] : words) {
    if (value == wanted) return name;
  }
  throw std::logic_error("an enumeration's value without a name");
}

// The value whose name the object has under `key`.
template <typename Enum>
Enum choose(JsonReader& reader, const std::string& key, const Words<Enum>& words, const std::string& fallback) {
  return value_of(words, reader.choice(key, names_in(words), fallback), key);
}

}  // namespace cortado
