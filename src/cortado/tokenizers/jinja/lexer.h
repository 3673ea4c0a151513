// Cuts a template into its text and the tokens of its tags.
#pragma once

#include <string>
#include <vector>

#include "cortado/tokenizers/jinja/text.h"

namespace cortado::jinja {

struct Token {
  enum class Type {
    kData,
    kBlockBegin,
    kBlockEnd,
    kPrintBegin,
    kPrintEnd,
    kName,
    kText,
    kInteger,
    kFloat,
    kSign,
    kEnd
  };
  Type type;
  std::string text;  // a name, a sign, the value of a text, the digits of a number
  int line;

  bool is(Type expected, std::string_view word) const { return type == expected && text == word; }
};

// Jinja's own syntax, with trim_blocks and lstrip_blocks as transformers sets them. Throws Error.
std::vector<Token> tokenize(const std::string& source);

}  // namespace cortado::jinja
