#include "cortado/tokenizers/jinja/text.h"

#include <utf8proc.h>

#include <algorithm>

#include "cortado/base/utf8.h"

namespace cortado::jinja {

Text Text::typed(std::string bytes, int32_t source) {
  Text text(std::move(bytes));
  if (!text.empty()) text.typed_ = {{0, text.size(), source}};
  return text;
}

void Text::append(const Text& more) {
  const size_t start = bytes_.size();
  bytes_ += more.bytes_;
  for (Typed range : more.typed_) {
    range.begin += start;
    range.end += start;
    const bool joins = !typed_.empty() && typed_.back().end == range.begin && typed_.back().source == range.source;
    joins ? void(typed_.back().end = range.end) : typed_.push_back(range);
  }
}

Text Text::part(size_t begin, size_t end) const {
  Text out(bytes_.substr(begin, end - begin));
  out.html_ = html_;
  for (const Typed& range : typed_) {
    const size_t from = std::max(range.begin, begin), to = std::min(range.end, end);
    if (from < to) out.typed_.push_back({from - begin, to - begin, range.source});
  }
  return out;
}

void Text::truncate(size_t size) {
  if (size < bytes_.size()) *this = part(0, size);
}

bool is_space(uint32_t code) {
  return (code >= 0x09 && code <= 0x0D) || (code >= 0x1C && code <= 0x20) || code == 0x85 || code == 0xA0 ||
         code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F ||
         code == 0x205F || code == 0x3000;
}

namespace {

// The character at byte `at`. An invalid byte counts as one character.
Utf8Char character_at(std::string_view text, size_t at) {
  Utf8Char c = utf8_char(text.substr(at));
  if (c.length == 0) c = {0xFFFD, 1, false};
  return c;
}

bool in_set(const std::string& characters, uint32_t code) {
  for (size_t at = 0; at < characters.size();) {
    const Utf8Char c = character_at(characters, at);
    if (c.code == code) return true;
    at += static_cast<size_t>(c.length);
  }
  return false;
}

// The first and last byte after stripping.
std::pair<size_t, size_t> stripped(std::string_view text, bool left, bool right, const std::string* characters) {
  size_t begin = text.size(), end = 0;
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = character_at(text, at);
    const size_t next = at + static_cast<size_t>(c.length);
    if (!(characters ? in_set(*characters, c.code) : is_space(c.code))) {
      begin = std::min(begin, at);
      end = next;
    }
    at = next;
  }
  if (begin > end) begin = end = left ? text.size() : 0;
  return {left ? begin : 0, right ? std::max(end, left ? begin : 0) : text.size()};
}

std::string changed_case(std::string_view text, utf8proc_int32_t (*change)(utf8proc_int32_t)) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = character_at(text, at);
    if (c.code == 0xDF && change == utf8proc_toupper) {
      out += "SS";
    } else {
      append_utf8(out, static_cast<uint32_t>(change(static_cast<utf8proc_int32_t>(c.code))));
    }
    at += static_cast<size_t>(c.length);
  }
  return out;
}

bool is_cased(uint32_t code) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(code));
  return category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LL || category == UTF8PROC_CATEGORY_LT;
}

// White space separates: leading and trailing white space vanishes.
std::vector<Text> split_at_space(const Text& text, int64_t most, bool from_right) {
  std::vector<std::pair<size_t, size_t>> words;
  const std::string& bytes = text.bytes();
  bool inside = false;
  for (size_t at = 0; at < bytes.size();) {
    const Utf8Char c = character_at(bytes, at);
    if (is_space(c.code)) {
      inside = false;
    } else if (!inside) {
      words.emplace_back(at, 0);
      inside = true;
    }
    at += static_cast<size_t>(c.length);
    if (inside) words.back().second = at;
  }
  const auto count = static_cast<int64_t>(words.size());
  if (most >= 0 && count > most + 1) {  // the rest stays one text
    if (from_right) {
      const auto rest = words.begin() + (count - most);
      const size_t end = std::prev(rest)->second;
      words.erase(words.begin(), rest);
      words.insert(words.begin(), {0, end});
    } else {
      words[static_cast<size_t>(most)].second = bytes.size();
      words.resize(static_cast<size_t>(most) + 1);
    }
  }
  std::vector<Text> all;
  for (const auto& [begin, end] : words) all.push_back(text.part(begin, end));
  return all;
}

}  // namespace

Text strip(const Text& text, bool left, bool right, const std::string* characters) {
  const auto [begin, end] = stripped(text.bytes(), left, right, characters);
  return text.part(begin, end);
}

std::vector<Text> split(const Text& text, const std::string* separator, int64_t most, bool from_right) {
  if (!separator) return split_at_space(text, most, from_right);
  std::vector<Text> all;
  const std::string& bytes = text.bytes();
  if (from_right) {
    size_t end = bytes.size();
    while (most < 0 || static_cast<int64_t>(all.size()) < most) {
      const size_t at = end < separator->size() ? std::string::npos : bytes.rfind(*separator, end - separator->size());
      if (at == std::string::npos) break;
      all.push_back(text.part(at + separator->size(), end));
      end = at;
    }
    all.push_back(text.part(0, end));
    std::reverse(all.begin(), all.end());
    return all;
  }
  size_t begin = 0;
  while (most < 0 || static_cast<int64_t>(all.size()) < most) {
    const size_t at = bytes.find(*separator, begin);
    if (at == std::string::npos) break;
    all.push_back(text.part(begin, at));
    begin = at + separator->size();
  }
  all.push_back(text.part(begin, bytes.size()));
  return all;
}

std::vector<Text> split_lines(const Text& text, bool keep_ends) {
  std::vector<Text> all;
  const std::string& bytes = text.bytes();
  size_t begin = 0;
  for (size_t at = 0; at < bytes.size();) {
    const Utf8Char c = character_at(bytes, at);
    size_t next = at + static_cast<size_t>(c.length);
    const bool ends = (c.code >= 0x0A && c.code <= 0x0D) || (c.code >= 0x1C && c.code <= 0x1E) || c.code == 0x85 ||
                      c.code == 0x2028 || c.code == 0x2029;
    if (ends) {
      if (c.code == 0x0D && next < bytes.size() && bytes[next] == '\n') ++next;
      all.push_back(text.part(begin, keep_ends ? next : at));
      begin = next;
    }
    at = next;
  }
  if (begin < bytes.size()) all.push_back(text.part(begin, bytes.size()));
  return all;
}

Text replace(const Text& text, const std::string& old, const Text& with, int64_t most) {
  Text out;
  const std::string& bytes = text.bytes();
  size_t done = 0;
  const auto put = [&](size_t begin, size_t end) {
    out.append(text.part(done, begin));
    out.append(with);
    done = end;
    --most;
  };
  if (old.empty()) {
    for (const size_t start : character_starts(bytes)) {
      if (most != 0) put(start, start);
    }
  } else {
    for (size_t at = bytes.find(old); at != std::string::npos && most != 0; at = bytes.find(old, done)) {
      put(at, at + old.size());
    }
  }
  out.append(text.part(done, bytes.size()));
  return out;
}

Text escape(const Text& text) {
  if (text.html()) return text;
  Text out = text.mapped([](std::string_view piece) {
    std::string escaped;
    for (const char c : piece) {
      switch (c) {
        case '&':
          escaped += "&amp;";
          break;
        case '<':
          escaped += "&lt;";
          break;
        case '>':
          escaped += "&gt;";
          break;
        case '\'':
          escaped += "&#39;";
          break;
        case '"':
          escaped += "&#34;";
          break;
        default:
          escaped += c;
      }
    }
    return escaped;
  });
  out.set_html(true);
  return out;
}

Text upper(const Text& text) {
  return text.mapped([](std::string_view piece) { return changed_case(piece, utf8proc_toupper); });
}

Text lower(const Text& text) {
  return text.mapped([](std::string_view piece) { return changed_case(piece, utf8proc_tolower); });
}

// Like Python's: a cased character after one without case is a title.
Text title(const Text& text) {
  bool inside = false;
  return text.mapped([&](std::string_view piece) {
    std::string out;
    for (size_t at = 0; at < piece.size();) {
      const Utf8Char c = character_at(piece, at);
      out +=
          changed_case(piece.substr(at, static_cast<size_t>(c.length)), inside ? utf8proc_tolower : utf8proc_totitle);
      inside = is_cased(c.code);
      at += static_cast<size_t>(c.length);
    }
    return out;
  });
}

Text capitalize(const Text& text) {
  bool first = true;
  return text.mapped([&](std::string_view piece) {
    const size_t head = first ? static_cast<size_t>(character_at(piece, 0).length) : 0;
    first = false;
    return changed_case(piece.substr(0, head), utf8proc_totitle) + changed_case(piece.substr(head), utf8proc_tolower);
  });
}

std::vector<size_t> character_starts(std::string_view text) {
  std::vector<size_t> starts;
  for (size_t at = 0; at < text.size(); ++at) {
    if ((static_cast<unsigned char>(text[at]) & 0xC0) != 0x80) starts.push_back(at);
  }
  starts.push_back(text.size());
  return starts;
}

int64_t character_count(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

}  // namespace cortado::jinja
