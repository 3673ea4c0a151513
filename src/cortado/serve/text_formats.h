// The formats of texts in schemas ("format").
#pragma once

#include <string>

namespace cortado {

// Texts of a format as an expression: not all, but none that programs refuse, as they do some of the grammar library's
// (days that there are not, numbers with zeros before them). Null: none is known.
const std::string* pattern_of_format(const std::string& format);

// Whether the library knows it.
bool is_built_in(const std::string& format);

}  // namespace cortado
