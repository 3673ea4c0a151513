#include "cortado/base/utf8.h"

#include <cstdio>

namespace cortado {

Utf8Char utf8_char(std::string_view text) {
  if (text.empty()) return {};
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {lead, 1, false};
  if (lead < 0xC2 || lead > 0xF4) return {};  // C0 and C1 begin overlong forms, F5 and above are beyond U+10FFFF
  const int length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  uint32_t code = lead & (0x7F >> length);
  for (int i = 1; i < length; ++i) {
    if (static_cast<size_t>(i) >= text.size()) return {0, 0, true};
    // The second byte alone decides whether a form is overlong, a surrogate, or beyond U+10FFFF.
    unsigned char low = 0x80, high = 0xBF;
    if (i == 1 && lead == 0xE0) low = 0xA0;
    if (i == 1 && lead == 0xED) high = 0x9F;
    if (i == 1 && lead == 0xF0) low = 0x90;
    if (i == 1 && lead == 0xF4) high = 0x8F;
    if (byte(i) < low || byte(i) > high) return {};
    code = code << 6 | (byte(i) & 0x3F);
  }
  return {code, length, false};
}

void append_utf8(std::string& out, uint32_t code) {
  constexpr uint32_t kLead[] = {0, 0xC0, 0xE0, 0xF0};
  const int behind = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;  // bytes after the first one
  out += static_cast<char>(kLead[behind] | code >> 6 * behind);
  for (int i = behind - 1; i >= 0; --i) out += static_cast<char>(0x80 | (code >> 6 * i & 0x3F));
}

size_t utf8_valid_prefix(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      ++at;
      continue;
    }
    const Utf8Char c = utf8_char(text.substr(at));
    if (c.length == 0) break;
    at += static_cast<size_t>(c.length);
  }
  return at;
}

std::string describe_char(uint32_t code) {
  char number[16];
  std::snprintf(number, sizeof number, "U+%04X", code);
  if (code < 0x20 || (code >= 0x7F && code < 0xA0)) return number;
  std::string text = "'";
  append_utf8(text, code);
  return text + "' (" + number + ")";
}

}  // namespace cortado
