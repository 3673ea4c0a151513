#include "cortado/base/words.h"

#include <algorithm>

#include "cortado/base/error.h"

namespace cortado {

std::string alternatives(const std::vector<std::string>& words, std::string_view quote) {
  std::string list;
  for (size_t i = 0; i < words.size(); ++i) {
    list += concat(i == 0 ? "" : i + 1 < words.size() ? ", " : " or ", quote, words[i], quote);
  }
  return list;
}

std::string joined(const std::vector<std::string>& words, std::string_view separator) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i) text += concat(i > 0 ? separator : "", words[i]);
  return text;
}

size_t word_index(std::string_view word, const std::vector<std::string>& known, std::string_view place) {
  const auto found = std::find(known.begin(), known.end(), word);
  if (found != known.end()) return static_cast<size_t>(found - known.begin());
  throw InputError(concat(place, " must be ", alternatives(known, "\""), ", got \"", word, "\""));
}

}  // namespace cortado
