// Strict UTF-8 decoding and checking: no overlong forms, no surrogates, nothing above U+10FFFF.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace cortado {

// The first character of a text: its code point and its length in bytes. A length of 0 means that the text is invalid
// or empty. `unfinished`: the bytes are the start of a character whose rest is missing.
struct Utf8Char {
  uint32_t code = 0;
  int length = 0;
  bool unfinished = false;
};
Utf8Char utf8_char(std::string_view text);

// Appends the character of a valid code point to `out`.
void append_utf8(std::string& out, uint32_t code);

// Returns the number of leading bytes of `text` that form whole valid characters (text.size() if all do).
size_t utf8_valid_prefix(std::string_view text);

// Describes a character for messages: 'é' (U+00E9), or only U+0007 if it is not printable.
std::string describe_char(uint32_t code);

}  // namespace cortado
