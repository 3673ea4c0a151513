#include "cortado/tokenizers/bpe/bpe_tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>

#include "cortado/base/error.h"
#include "cortado/base/utf8.h"

namespace cortado {
namespace {

// Unicode properties that make up Ruby's \w. PCRE2's own \w lacks marks, and its \s includes U+180E.
constexpr const char* kWordProperties = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";

// Translates a pattern from Ruby's syntax to PCRE2's, from left to right.
class Translation {
 public:
  Translation(const std::string& pattern, const std::string& place) : pattern_(pattern), place_(place) {}

  std::string run() {
    while (at_ < pattern_.size()) {
      if (pattern_[at_] == '\\') {
        escape();
      } else if (in_class_) {
        class_character();
      } else {
        character();
      }
    }
    return out_;
  }

 private:
  char ahead(size_t by) const { return at_ + by < pattern_.size() ? pattern_[at_ + by] : '\0'; }

  void copy(size_t count) {
    out_.append(pattern_, at_, count);
    at_ += count;
  }

  [[noreturn]] void refuse(const std::string& what) const {
    throw InputError(
        concat("[", place_, "] the regular expression \"", pattern_, "\" has ", what, ", which is not supported"));
  }

  void put(const std::string& text) {
    out_ += text;
    at_ += 2;
  }

  void escape() {
    const char next = ahead(1);
    if (next == 'p' || next == 'P' || next == 'x') {
      if (ahead(2) != '{') return copy(2);
      return copy(std::min(pattern_.find('}', at_), pattern_.size() - 1) + 1 - at_);
    }
    if (next == 's') return put("\\p{White_Space}");
    if (next == 'S') return put("\\P{White_Space}");
    if (next == 'd') return put("\\p{Nd}");
    if (next == 'D') return put("\\P{Nd}");
    if (next == 'h') return put(in_class_ ? "0-9a-fA-F" : "[0-9a-fA-F]");
    if (next == 'w') return put(in_class_ ? kWordProperties : concat("[", kWordProperties, "]"));
    if (next == 'u') {
      put(concat("\\x{", pattern_.substr(std::min(at_ + 2, pattern_.size()), 4), "}"));
      at_ = std::min(at_ + 4, pattern_.size());
    } else if (next == 'H' || next == 'W') {
      if (in_class_) refuse(concat("\\", next, " inside [ ]"));
      put(next == 'H' ? "[^0-9a-fA-F]" : concat("[^", kWordProperties, "]"));
    } else {
      copy(std::min<size_t>(2, pattern_.size() - at_));
    }
  }

  void class_character() {
    const char c = pattern_[at_];
    if (c == '[' && ahead(1) == ':') return copy(std::min(pattern_.find(":]", at_), pattern_.size() - 2) + 2 - at_);
    if (c == '[') refuse("[ ] inside [ ]");
    if (c == '&' && ahead(1) == '&') refuse("&& inside [ ]");
    if (c == ']') in_class_ = false;
    copy(1);
  }

  void character() {
    const char c = pattern_[at_];
    if (c == '}' && ahead(1) == '+') refuse("{ }+");
    copy(1);
    if (c != '[') return;
    in_class_ = true;
    if (ahead(0) == '^') copy(1);
    if (ahead(0) == ']') copy(1);  // directly after [ or [^, a ] is a character
  }

  const std::string& pattern_;
  const std::string& place_;
  std::string out_ = "(*LF)";  // only a line feed ends a line, for ^ $ and .
  size_t at_ = 0;
  bool in_class_ = false;
};

}  // namespace

Matcher::Matcher(const Pattern& pattern, const std::string& place) : pattern_(pattern.text) {
  if (!pattern.regex) return;
  const std::string translated = Translation(pattern_, place).run();
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr);
  if (!code) {
    unsigned char reason[256];
    pcre2_get_error_message(error, reason, sizeof reason);
    throw InputError(concat("[", place, "] \"", pattern_, "\" is not a regular expression: ", reason));
  }
  code_ = std::shared_ptr<pcre2_real_code_8>(code, [](pcre2_code* it) { pcre2_code_free(it); });
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // if the JIT is not available, the interpreter runs
}

int Matcher::match(std::string_view text, size_t at, Span& span) const {
  using Data = std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)>;
  const auto matched = [&](const Data& data, uint32_t options) {
    const int result = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at,
                                   PCRE2_NO_UTF_CHECK | options, data.get(), nullptr);
    if (result < 0 && result != PCRE2_ERROR_NOMATCH) return result;
    const auto* offsets = pcre2_get_ovector_pointer(data.get());
    span = {offsets[0], offsets[1]};
    return result;
  };
  thread_local const Data kept(pcre2_match_data_create(1, nullptr), pcre2_match_data_free);
  int result = matched(kept, 0);
  if (result == PCRE2_ERROR_JIT_STACKLIMIT) {
    // The interpreter keeps its stack, which can be many times the text, in the match data: use a temporary one.
    const Data once(pcre2_match_data_create(1, nullptr), pcre2_match_data_free);
    result = matched(once, PCRE2_NO_JIT);
  }
  if (result < 0 && result != PCRE2_ERROR_NOMATCH) {
    throw Failure(concat("[tokenizer] the regular expression \"", pattern_, "\" needs too much memory for a text of ",
                         text.size(), " bytes"));
  }
  return result;
}

void Matcher::find_all(std::string_view text, std::vector<Span>& spans) const {
  spans.clear();
  if (text.empty() || (!code_ && pattern_.empty())) return;
  if (!code_) {
    for (size_t at = text.find(pattern_); at != std::string_view::npos; at = text.find(pattern_, at)) {
      spans.push_back({at, at + pattern_.size()});
      at += pattern_.size();
    }
    return;
  }
  size_t at = 0;
  Span span{};
  while (at <= text.size() && match(text, at, span) >= 0) {
    const bool touches = !spans.empty() && spans.back().end == span.begin;
    if (span.begin == span.end && touches) {
      at += at < text.size() ? static_cast<size_t>(std::max(1, utf8_char(text.substr(at)).length)) : 1;
      continue;
    }
    spans.push_back(span);
    at = span.end;
  }
}

std::string Matcher::replace_all(std::string_view text, std::string_view with) const {
  std::vector<Span> spans;
  find_all(text, spans);
  std::string out;
  out.reserve(text.size() + spans.size() * with.size());
  size_t at = 0;
  for (const Span& span : spans) {
    out.append(text.substr(at, span.begin - at)).append(with);
    at = span.end;
  }
  return out.append(text.substr(at));
}

}  // namespace cortado
