#include "cortado/base/words.h"

#include <algorithm>

#include "cortado/base/error.h"

namespace cortado {

size_t word_index(std::string_view word, const std::vector<std::string>& known, std::string_view place) {
  const auto found = std::find(known.begin(), known.end(), word);
  if (found != known.end()) return static_cast<size_t>(found - known.begin());
  std::string list;
  for (size_t i = 0; i + 1 < known.size(); ++i) list += concat(i > 0 ? ", \"" : "\"", known[i], "\"");
  throw InputError(concat(place, " must be ", list, " or \"", known.back(), "\", got \"", word, "\""));
}

}  // namespace cortado
