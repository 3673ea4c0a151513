// Names of choices.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace cortado {

// Where `word` stands among the known ones (at least two). InputError "PLACE must be "a", "b" or "c", got "d"" if it
// does not.
size_t word_index(std::string_view word, const std::vector<std::string>& known, std::string_view place);

}  // namespace cortado
