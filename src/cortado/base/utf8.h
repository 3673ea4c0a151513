// UTF-8: decoding and checking, strictly (no overlong forms, no surrogates, nothing above U+10FFFF).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace cortado {

// The character at the start of `text`: its code point and length in bytes. length 0: invalid, or empty. `unfinished`:
// the bytes so far are the start of a character whose rest is missing.
struct Utf8Char {
  uint32_t code = 0;
  int length = 0;
  bool unfinished = false;
};
Utf8Char utf8_char(std::string_view text);

void append_utf8(std::string& out, uint32_t code);

// How many of the first bytes of `text` are whole valid characters (all of them: text.size()).
size_t utf8_valid_prefix(std::string_view text);

// A character for messages: 'é' (U+00E9), or U+0007 alone where it is not printable.
std::string describe_char(uint32_t code);

}  // namespace cortado
