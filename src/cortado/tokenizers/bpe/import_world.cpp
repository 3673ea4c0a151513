// RWKV's World tokenizer, from its vocabulary file and from GGUF files.
#include <algorithm>
#include <charconv>

#include "cortado/base/error.h"
#include "cortado/base/utf8.h"
#include "cortado/tokenizers/bpe/imports.h"

namespace cortado {
namespace {

constexpr const char* kEndOfText = "<|rwkv_tokenizer_end_of_text|>";  // token 0 of RWKV's own tokenizer

BpeDefinition empty_world() {
  BpeDefinition definition;
  definition.longest = true;
  definition.pre_tokenizer = {{"bytes"}};
  definition.decoder = {{"bytes"}};
  return definition;
}

// A number in `base` that is all of the text; -1 for other texts.
int64_t number_of(std::string_view text, int base) {
  int64_t number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, base);
  return error == std::errc() && end == text.data() + text.size() ? number : -1;
}

// Reads what follows a backslash, and takes it from the text. In `bytes`, \x names a byte, else a character. False for
// an escape that is not known.
bool read_escape(std::string_view& text, bool bytes, std::string& out) {
  static constexpr std::string_view kNames = "tnr\\'\"", kMeant = "\t\n\r\\'\"";
  if (text.empty()) return false;
  const char name = text.front();
  text.remove_prefix(1);
  if (const size_t at = kNames.find(name); at != std::string_view::npos) {
    out += kMeant[at];
    return true;
  }
  const size_t digits = name == 'x' ? 2 : name == 'u' && !bytes ? 4 : name == 'U' && !bytes ? 8 : 0;
  const int64_t code = digits > 0 && text.size() >= digits ? number_of(text.substr(0, digits), 16) : -1;
  if (code < 0 || code > 0x10FFFF) return false;
  text.remove_prefix(digits);
  if (bytes) {
    out += static_cast<char>(code);
  } else {
    append_utf8(out, static_cast<uint32_t>(code));
  }
  return true;
}

// The bytes of a literal of Python, 'text' or b'bytes'; "" for anything else.
std::string bytes_of_literal(std::string_view literal) {
  const bool bytes = literal.starts_with('b');
  if (bytes) literal.remove_prefix(1);
  const char quote = literal.empty() ? '\0' : literal.front();
  if ((quote != '\'' && quote != '"') || literal.size() < 2 || literal.back() != quote) return "";
  literal = literal.substr(1, literal.size() - 2);
  std::string out;
  while (!literal.empty()) {
    const char next = literal.front();
    literal.remove_prefix(1);
    if (next != '\\') {
      out += next;
    } else if (!read_escape(literal, bytes, out)) {
      return "";
    }
  }
  return out;
}

// The bytes of a token of a GGUF file. Unknown escapes stand for their letter.
std::string unescaped(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const char next = text.front();
    text.remove_prefix(1);
    if (next != '\\') {
      out += next;
      continue;
    }
    const std::string_view escape = text;
    if (read_escape(text, /*bytes=*/true, out)) continue;
    text = escape;
  }
  return out;
}

}  // namespace

std::string escaped_bytes(std::string_view bytes) {
  static constexpr std::string_view kMeant = "\t\n\r\\", kNames = "tnr\\", kDigits = "0123456789abcdef";
  const bool quoted = bytes.find('"') != std::string_view::npos;  // as Python writes both kinds of quotes in one text
  std::string text;
  for (const char byte : bytes) {
    const auto code = static_cast<unsigned char>(byte);
    if (const size_t at = kMeant.find(byte); at != std::string_view::npos) {
      text += {'\\', kNames[at]};
    } else if (byte == '\'' && quoted) {
      text += "\\'";
    } else if (code < 0x20 || code > 0x7E) {
      text += {'\\', 'x', kDigits[code >> 4], kDigits[code & 15]};
    } else {
      text += byte;
    }
  }
  return text;
}

BpeDefinition read_world_vocabulary(const std::string& text, const std::string& path) {
  BpeDefinition definition = empty_world();
  std::string_view rest = text;
  for (int64_t number = 1; !rest.empty(); ++number) {
    std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    if (line.ends_with('\r')) line.remove_suffix(1);
    const size_t first = line.find(' '), last = line.rfind(' ');
    const int64_t id = first == std::string_view::npos ? -1 : number_of(line.substr(0, first), 10);
    const std::string bytes = id < 0 || last <= first ? "" : bytes_of_literal(line.substr(first + 1, last - first - 1));
    const bool good = !bytes.empty() && number_of(line.substr(last + 1), 10) == std::ssize(bytes);
    fail_input_if(!good || id >= kMostTokens, "[", path, "] line ", number,
                  ": expected an id, a text in quotes and its number of bytes");
    if (id >= std::ssize(definition.tokens)) definition.tokens.resize(id + 1);
    fail_input_if(!definition.tokens[id].empty(), "[", path, "] line ", number, ": two tokens have the id ", id);
    definition.tokens[id] = letters_of_bytes(bytes);
  }
  return definition;
}

void complete_world(BpeDefinition& definition) {
  if (definition.tokens.empty()) definition.tokens.resize(1);
  if (definition.tokens[0].empty()) {
    definition.tokens[0] = kEndOfText;
    definition.added.push_back({.id = 0, .text = kEndOfText, .special = true});
  }
  for (AddedToken& token : definition.added) {
    token.apart = true;
    if (token.id == 0) definition.special.begin = definition.special.end = 0;
  }
}

BpeDefinition define_world(const VocabularyMetadata& metadata, const std::string& place) {
  BpeDefinition definition = empty_world();
  add_marked_tokens(metadata, false, definition);
  for (AddedToken& token : definition.added) token.apart = true;
  for (size_t id = 0; id < metadata.tokens.size(); ++id) {
    const int32_t type = type_of(metadata, id);
    const std::string& token = metadata.tokens[id];
    fail_input_if(type == kByte, "[", place, "] token ", id, " is of a type that RWKV's tokenizer does not have");
    definition.tokens.push_back(type == kNormal ? letters_of_bytes(unescaped(token)) : type == kUnused ? "" : token);
  }
  set_special(metadata, false, false, definition);
  return definition;
}

}  // namespace cortado
