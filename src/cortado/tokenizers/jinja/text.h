// A text that remembers which of its bytes come from messages.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cortado::jinja {

// Bytes that somebody typed: those of a message (its index), or of something else that a client sent (kOther).
struct Typed {
  static constexpr int32_t kOther = -1;
  size_t begin, end;
  int32_t source = kOther;
};

// UTF-8. Every operation keeps track of the typed bytes, so a template can cut, join and replace texts as it likes.
class Text {
 public:
  Text() = default;
  Text(std::string bytes) : bytes_(std::move(bytes)) {}  // NOLINT(google-explicit-constructor): written by a template
  Text(const char* bytes) : bytes_(bytes) {}             // NOLINT(google-explicit-constructor)
  static Text typed(std::string bytes, int32_t source);

  const std::string& bytes() const { return bytes_; }
  const std::vector<Typed>& typed() const { return typed_; }  // sorted, without overlaps
  // Whether a filter has declared the text to be HTML (safe, escape). Python escapes what is joined to such a text.
  bool html() const { return html_; }
  void set_html(bool html) { html_ = html; }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }

  void append(const Text& more);
  void write(std::string_view bytes) { bytes_ += bytes; }  // a template's own
  Text part(size_t begin, size_t end) const;               // byte offsets
  // Types what comes from message i as coming from message sources[i].
  void rename_sources(const std::vector<int32_t>& sources) {
    for (Typed& range : typed_) {
      if (range.source >= 0) range.source = sources.at(static_cast<size_t>(range.source));
    }
  }
  void truncate(size_t size);

  // The text with each stretch of the same origin replaced by `change` of it.
  template <typename Change>
  Text mapped(const Change& change) const;

 private:
  std::string bytes_;
  std::vector<Typed> typed_;
  bool html_ = false;
};

bool is_space(uint32_t code);  // white space as Python defines it

// Operations of Python's str.
Text strip(const Text& text, bool left, bool right, const std::string* characters = nullptr);
std::vector<Text> split(const Text& text, const std::string* separator, int64_t most, bool from_right);
std::vector<Text> split_lines(const Text& text, bool keep_ends);
Text replace(const Text& text, const std::string& old, const Text& with, int64_t most);
Text escape(const Text& text);  // for HTML
Text upper(const Text& text);
Text lower(const Text& text);
Text title(const Text& text);
Text capitalize(const Text& text);

std::vector<size_t> character_starts(std::string_view text);  // the byte offset of every character, then the size
int64_t character_count(std::string_view text);

template <typename Change>
Text Text::mapped(const Change& change) const {
  Text out;
  size_t at = 0;
  const auto take = [&](size_t end, std::optional<int32_t> source) {
    if (at < end) {
      std::string piece = change(std::string_view(bytes_).substr(at, end - at));
      source ? out.append(typed(std::move(piece), *source)) : out.write(piece);
    }
    at = end;
  };
  for (const Typed& range : typed_) {
    take(range.begin, {});
    take(range.end, range.source);
  }
  take(bytes_.size(), {});
  return out;
}

}  // namespace cortado::jinja
