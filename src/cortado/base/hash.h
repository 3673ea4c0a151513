// 64-bit FNV-1a: detects accidental changes, not forgeries.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace cortado {

// The hash of an empty text (FNV's offset basis).
inline constexpr uint64_t kHashStart = 0xCBF29CE484222325ULL;

// Returns the hash of `bytes`, the same with every standard library (std::hash differs). Passing the hash of a text as
// `value` continues it: hash_bytes(b, hash_bytes(a)) is the hash of a + b.
constexpr uint64_t hash_bytes(std::string_view bytes, uint64_t value = kHashStart) {
  for (const char c : bytes) value = (value ^ static_cast<unsigned char>(c)) * 0x100000001B3ULL;
  return value;
}

// The hash as 16 hexadecimal digits.
inline std::string hash_text(std::string_view bytes) {
  char text[24];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash_bytes(bytes)));
  return text;
}

}  // namespace cortado
