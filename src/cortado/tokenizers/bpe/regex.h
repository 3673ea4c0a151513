// Regular expressions as Hugging Face's tokenizer.json means them, by PCRE2.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cortado/tokenizers/bpe/definition.h"

struct pcre2_real_code_8;

namespace cortado {

struct Span {
  size_t begin;
  size_t end;
};

// Those files are written for Oniguruma with Ruby's syntax: ^ and $ match at every line, \s and \w are Unicode's
// properties, \h is a hexadecimal digit. What PCRE2 would read differently is translated; nested classes, && and
// {n,m}+ cannot be, and are an InputError that says so.
class Regex {
 public:
  Regex(const std::string& pattern, const std::string& place);

  // All matches from left to right, in valid UTF-8. An empty match that touches the match before it is none. Safe to
  // call from several threads.
  void find_all(std::string_view text, std::vector<Span>& spans) const;
  bool matches_somewhere(std::string_view text) const;

 private:
  int match(std::string_view text, size_t at, Span& span) const;

  std::string pattern_;
  std::shared_ptr<pcre2_real_code_8> code_;
};

// A pattern, ready to be looked for.
class Matcher {
 public:
  Matcher(const Pattern& pattern, const std::string& place);
  void find_all(std::string_view text, std::vector<Span>& spans) const;
  std::string replace_all(std::string_view text, std::string_view with) const;

 private:
  std::string literal_;
  std::shared_ptr<const Regex> regex_;
};

}  // namespace cortado
