#include "cortado/tokenizers/jinja/lexer.h"

#include <algorithm>

#include "cortado/base/utf8.h"
#include "cortado/tokenizers/jinja/value.h"

namespace cortado::jinja {
namespace {

using Type = Token::Type;

std::string with_plain_newlines(const std::string& source) {
  std::string out;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
    } else if (i + 1 == source.size() || source[i + 1] != '\n') {
      out += '\n';
    }
  }
  if (out.ends_with('\n')) out.pop_back();  // keep_trailing_newline is off
  return out;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || static_cast<signed char>(c) < 0;
}

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) read_data();
    add(Type::kEnd, "");
    return std::move(tokens_);
  }

 private:
  void add(Type type, std::string text) { tokens_.push_back({type, std::move(text), line_}); }
  bool looking_at(std::string_view word, size_t ahead = 0) const { return rest(ahead).starts_with(word); }
  std::string_view rest(size_t ahead = 0) const {
    return std::string_view(source_).substr(std::min(at_ + ahead, source_.size()));
  }
  void advance(size_t count) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(at_ + count), '\n'));
    at_ += count;
    if (count > 0) line_starts_ = source_[at_ - 1] == '\n';
  }
  [[noreturn]] void refuse(const std::string& what) const { fail("line ", line_, ": ", what); }

  // Text up to the next tag. `control`: "-", "+" or "" after the tag's begin.
  void add_data(size_t end, std::string_view control, bool print) {
    std::string data = source_.substr(at_, end - at_);
    if (control == "-") {
      data = strip(Text(data), false, true).bytes();
    } else if (control != "+" && !print) {
      const size_t start = data.rfind('\n') == std::string::npos ? 0 : data.rfind('\n') + 1;
      const bool blank = start < data.size() && strip(Text(data.substr(start)), true, false).empty();
      if (blank && (start > 0 || line_starts_)) data.resize(start);
    }
    if (!data.empty()) add(Type::kData, data);
    advance(end - at_);
  }

  std::string_view control_at(size_t place) const {
    const char c = place < source_.size() ? source_[place] : ' ';
    return c == '-' ? "-" : c == '+' ? "+" : "";
  }

  void read_data() {
    size_t begin = at_;
    while ((begin = source_.find('{', begin)) != std::string::npos) {
      if (begin + 1 < source_.size() && std::string_view("{%#").find(source_[begin + 1]) != std::string::npos) break;
      ++begin;
    }
    if (begin == std::string::npos) return add_data(source_.size(), "+", false);
    const char kind = source_[begin + 1];
    const std::string_view control = control_at(begin + 2);
    add_data(begin, control, kind == '{');
    advance(2 + control.size());
    if (kind == '#') return skip_comment();
    if (kind == '%' && read_raw()) return;
    add(kind == '%' ? Type::kBlockBegin : Type::kPrintBegin, "");
    read_tag(kind == '%');
  }

  // After "-#}", "+%}" and the like: white space, or one line end, belongs to the tag.
  void end_tag(std::string_view control, bool trims) {
    if (control == "-") {
      advance(2 + control.size());
      const std::string_view text = rest();
      advance(text.size() - strip_left(text));
    } else {
      advance(2 + control.size());
      const bool line_end = trims && control.empty() && looking_at("\n");
      if (line_end) advance(1);
    }
  }
  static size_t strip_left(std::string_view text) {
    size_t at = 0;
    while (at < text.size()) {
      const Utf8Char c = utf8_char(text.substr(at));
      if (c.length == 0 || !is_space(c.code)) break;
      at += static_cast<size_t>(c.length);
    }
    return text.size() - at;
  }

  void skip_comment() {
    const size_t end = source_.find("#}", at_);
    if (end == std::string::npos) refuse("a comment has no end");
    const bool marked = end > at_ && (source_[end - 1] == '-' || source_[end - 1] == '+');
    advance(end - (marked ? 1 : 0) - at_);
    end_tag(marked ? control_at(at_) : "", true);
  }

  size_t spaces_from(size_t ahead) const {
    const std::string_view text = rest(ahead);
    return text.size() - strip_left(text);
  }

  // {% raw %}: everything up to {% endraw %} is text.
  bool read_raw() {
    size_t ahead = spaces_from(0);
    if (!looking_at("raw", ahead)) return false;
    ahead += 3 + spaces_from(ahead + 3);
    const bool strips = looking_at("-%}", ahead);
    if (!strips && !looking_at("%}", ahead)) return false;
    advance(ahead);
    end_tag(strips ? "-" : "", false);
    for (size_t end = source_.find("{%", at_); end != std::string::npos; end = source_.find("{%", end + 2)) {
      const std::string_view control = control_at(end + 2);
      size_t word = end + 2 + control.size() - at_;
      word += spaces_from(word);
      if (!looking_at("endraw", word)) continue;
      word += 6 + spaces_from(word + 6);
      const std::string_view after = control_at(at_ + word);
      if (!looking_at("%}", word + after.size())) continue;
      const size_t close = at_ + word;
      add_data(end, control, false);
      advance(close - at_);
      end_tag(after, true);
      return true;
    }
    refuse("{% raw %} has no end");
  }

  void read_tag(bool block) {
    const std::string_view end = block ? "%}" : "}}";
    std::string open;  // brackets
    while (at_ < source_.size()) {
      advance(spaces_from(0));
      if (open.empty()) {
        const std::string_view control = looking_at("-") ? "-" : block && looking_at("+") ? "+" : "";
        if (looking_at(end, control.size())) {
          add(block ? Type::kBlockEnd : Type::kPrintEnd, "");
          return end_tag(control, block);
        }
      }
      if (at_ < source_.size()) read_token(open);
    }
    refuse("a tag has no end");
  }

  void read_token(std::string& open) {
    const char c = source_[at_];
    if (is_digit(c)) return read_number();
    if (is_name_start(c)) return read_name();
    if (c == '"' || c == '\'') return read_text(c);
    for (const std::string_view sign : {"//", "**", "==", "!=", ">=", "<="}) {
      if (looking_at(sign)) {
        add(Type::kSign, std::string(sign));
        return advance(2);
      }
    }
    if (std::string_view("+-/*%~[](){}><=.:|,;").find(c) == std::string_view::npos) {
      refuse(concat("unexpected character '", c, "'"));
    }
    if (c == '(' || c == '[' || c == '{') open += c == '(' ? ')' : c == '[' ? ']' : '}';
    if (c == ')' || c == ']' || c == '}') {
      if (open.empty() || open.back() != c) refuse(concat("unexpected '", c, "'"));
      open.pop_back();
    }
    add(Type::kSign, std::string(1, c));
    advance(1);
  }

  void read_name() {
    size_t size = 0;
    while (at_ + size < source_.size() && (is_name_start(source_[at_ + size]) || is_digit(source_[at_ + size]))) ++size;
    add(Type::kName, source_.substr(at_, size));
    advance(size);
  }

  size_t digits(size_t from) const {
    size_t at = from;
    while (at < source_.size() && (is_digit(source_[at]) || (source_[at] == '_' && at > from))) ++at;
    return at - from;
  }

  void read_number() {
    size_t size = digits(at_);
    bool real = false;
    const auto at = [&](size_t place) { return place < source_.size() ? source_[place] : ' '; };
    const bool after_dot = at_ > 0 && source_[at_ - 1] == '.';  // a.0.1 has no floats
    if (!after_dot && at(at_ + size) == '.' && is_digit(at(at_ + size + 1))) {
      size += 1 + digits(at_ + size + 1);
      real = true;
    }
    if (!after_dot && (at(at_ + size) | 0x20) == 'e') {
      const size_t sign = at(at_ + size + 1) == '+' || at(at_ + size + 1) == '-' ? 1 : 0;
      if (const size_t more = digits(at_ + size + 1 + sign); more > 0) {
        size += 1 + sign + more;
        real = true;
      }
    }
    std::string text = source_.substr(at_, size);
    std::erase(text, '_');
    add(real ? Type::kFloat : Type::kInteger, text);
    advance(size);
  }

  void read_text(char quote) {
    size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) refuse("a text has no end");
    add(Type::kText, unescaped(std::string_view(source_).substr(at_ + 1, end - at_ - 1)));
    advance(end + 1 - at_);
  }

  std::string unescaped(std::string_view text) const {
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '\\' || i + 1 == text.size()) {
        out += text[i];
        continue;
      }
      const char c = text[++i];
      static constexpr std::string_view kNames = "abfnrtv\\'\"", kCodes = "\a\b\f\n\r\t\v\\'\"";
      const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
      if (const size_t place = kNames.find(c); place != std::string_view::npos) {
        out += kCodes[place];
      } else if (digits > 0) {
        append_code(out, std::string(text.substr(i + 1, digits)), digits, 16);
        i += digits;
      } else if (c >= '0' && c <= '7') {
        size_t count = 1;
        while (count < 3 && i + count < text.size() && text[i + count] >= '0' && text[i + count] <= '7') ++count;
        append_code(out, std::string(text.substr(i, count)), count, 8);
        i += count - 1;
      } else if (c != '\n') {
        out += '\\';
        out += c;
      }
    }
    return out;
  }

  void append_code(std::string& out, const std::string& digits, size_t count, int base) const {
    const bool whole =
        digits.size() == count && digits.find_first_not_of("0123456789abcdefABCDEF") == std::string::npos;
    const auto code = whole ? static_cast<uint32_t>(std::stoul(digits, nullptr, base)) : 0x110000;
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) refuse("an escape in a text names no character");
    append_utf8(out, code);
  }

  std::string source_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starts_ = true;  // whether the text before ends with a line end
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(const std::string& source) { return Lexer(with_plain_newlines(source)).run(); }

}  // namespace cortado::jinja
