// How far a word is from another.
#pragma once

#include <cstddef>
#include <string>

namespace cortado {

// Inserting, deleting, replacing a letter, swapping two neighbours: how many of these make one word of the other.
size_t edit_distance(const std::string& one, const std::string& other);

}  // namespace cortado
