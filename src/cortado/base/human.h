// Numbers formatted for people.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>

namespace cortado {

// Formats as printf's "%.*f".
inline std::string fixed(double value, int digits) {
  char text[512];  // 1e308 has 309 digits
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

// 1536 -> "1.5 KiB"; 700 -> "700 B".
inline std::string human_bytes(double bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  int unit = 0;
  while (std::abs(bytes) >= 1023.95 && unit < 6) {
    bytes /= 1024;
    ++unit;
  }
  return fixed(bytes, unit == 0 ? 0 : 1) + " " + kUnits[unit];
}

// 12345678 -> "12.3 M"; 999 -> "999"; 0.25 -> "0.25".
inline std::string human_count(double count) {
  static constexpr const char* kUnits[] = {"", " k", " M", " G", " T"};
  int unit = 0;
  while (std::abs(count) >= 999.95 && unit < 4) {
    count /= 1000;
    ++unit;
  }
  if (unit == 0 && count == std::floor(count)) return fixed(count, 0);
  if (unit == 0) return fixed(count, std::abs(count) < 10 ? 2 : 1);
  return fixed(count, 1) + kUnits[unit];
}

// 12345678 -> "12,345,678".
inline std::string with_commas(int64_t value) {
  std::string text = std::to_string(value);
  const int first = value < 0 ? 1 : 0;
  for (int at = static_cast<int>(text.size()) - 3; at > first; at -= 3) text.insert(static_cast<size_t>(at), 1, ',');
  return text;
}

// 0.4 -> "0.4 s", 75 -> "1:15", 4000 -> "1:06:40", 200000 -> "2 d 07:33".
inline std::string human_seconds(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  if (seconds < 9.95) return fixed(seconds, 1) + " s";
  const auto whole = static_cast<int64_t>(std::llround(seconds < 9e15 ? seconds : 9e15));
  const long long minutes = whole / 60 % 60, hours = whole / 3600;
  char text[64];
  if (whole < 60) {
    std::snprintf(text, sizeof text, "%lld s", static_cast<long long>(whole));
  } else if (hours == 0) {
    std::snprintf(text, sizeof text, "%lld:%02lld", minutes, static_cast<long long>(whole % 60));
  } else if (hours < 24) {
    std::snprintf(text, sizeof text, "%lld:%02lld:%02lld", hours, minutes, static_cast<long long>(whole % 60));
  } else {
    std::snprintf(text, sizeof text, "%lld d %02lld:%02lld", hours / 24, hours % 24, minutes);
  }
  return text;
}

}  // namespace cortado
