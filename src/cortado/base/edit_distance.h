// The edit distance of two words.
#pragma once

#include <cstddef>
#include <string>

namespace cortado {

// Returns the least number of edits that turn one word into the other. An edit inserts, deletes or replaces a letter,
// or swaps two neighbours.
size_t edit_distance(const std::string& one, const std::string& other);

}  // namespace cortado
