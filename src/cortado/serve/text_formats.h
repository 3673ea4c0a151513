// The formats of strings in schemas ("format").
#pragma once

#include <string>

namespace cortado {

// Returns a regular expression for a format; null if none is known. It may match fewer texts than the format, but none
// that programs refuse. The grammar library's own expressions allow some of those, such as impossible dates and numbers
// with leading zeros.
const std::string* pattern_of_format(const std::string& format);

// Whether the library has an expression for this format.
bool is_built_in(const std::string& format);

}  // namespace cortado
