// Pieces of SVG files that all pictures share.
#pragma once

#include <cstdio>
#include <string>

#include "cortado/base/error.h"
#include "cortado/base/human.h"

namespace cortado {

// As XML's text.
inline std::string escaped_xml(const std::string& text) {
  std::string result;
  for (const char c : text) {
    const char* word = c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '"' ? "&quot;" : nullptr;
    if (word) {
      result += word;
    } else {
      result += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;  // XML has no control characters
    }
  }
  return result;
}

inline std::string svg_head(double width, double height, int font_size) {
  const std::string w = fixed(width, 1), h = fixed(height, 1);
  return concat("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"", w, "\" height=\"", h, "\" viewBox=\"0 0 ", w, " ",
                h, "\" font-family=\"sans-serif\" font-size=\"", font_size,
                "\" fill=\"#222222\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n");
}

inline std::string svg_text(double x, double y, const std::string& words, const std::string& style) {
  return concat("<text x=\"", fixed(x, 1), "\" y=\"", fixed(y, 1), "\" ", style, ">", escaped_xml(words), "</text>\n");
}

// Four digits of it.
inline std::string short_number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  return text;
}

}  // namespace cortado
