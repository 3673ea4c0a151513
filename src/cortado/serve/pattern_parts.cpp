#include "cortado/serve/pattern_parts.h"

#include <algorithm>
#include <string_view>

#include "cortado/base/error.h"
#include "cortado/base/utf8.h"

namespace cortado {

namespace {

constexpr size_t kMostFragments = 1 << 14;
constexpr int kDeepestGroup = 64;

// The meaning of \d, \s and \w differs between implementations: ASCII only or all of Unicode. `sure` are the characters
// that all of them match, `perhaps` those that some match.
struct ClassEscape {
  Characters sure, perhaps;
};

ClassEscape class_escape(char letter) {
  static const Characters kAscii = {{0, 0x7F}}, kOthers = {{0x80, 0x10FFFF}};
  static const Characters kDigits = {{'0', '9'}}, kWords = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
  static const Characters kSpaces = {{'\t', '\r'}, {' ', ' '}};
  static const Characters kMoreSpaces = {{0x1C, 0x1F},     {0x85, 0x85},     {0xA0, 0xA0},     {0x1680, 0x1680},
                                         {0x180E, 0x180E}, {0x2000, 0x200F}, {0x2028, 0x202F}, {0x205F, 0x205F},
                                         {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
  const auto with = [](Characters one, const Characters& other) {
    one.add(other);
    return one;
  };
  const auto negated = [](const ClassEscape& it) {
    return ClassEscape{Characters::all().without(it.perhaps), Characters::all().without(it.sure)};
  };
  switch (letter) {
    case 'd':
      return {kDigits, with(kDigits, {{0x660, 0x10FFFF}})};
    case 'w':
      return {kWords, with(kWords, kOthers)};
    case 's':
      return {kSpaces, with(kSpaces, kMoreSpaces)};
    default:
      return negated(class_escape(static_cast<char>(letter - 'A' + 'a')));
  }
}

}  // namespace

struct Fragments::Node {
  enum Type { kSet, kBegin, kEnd, kSequence, kEither, kRepeated } type = kSequence;
  Characters characters = {};
  std::vector<Node> children = {};
  int64_t least = 0, most = -1;  // limits of a repetition; most = -1: none
};

// Parses an expression from left to right.
class ExpressionReader {
 public:
  using Node = Fragments::Node;
  explicit ExpressionReader(const std::string& text) : text_(text) {
    fail_input_if(utf8_valid_prefix(text) != text.size(), "\"pattern\" is no UTF-8");
  }

  Node read() {
    Node whole = either(0);
    if (at_ < text_.size()) fail("has a \")\" without its \"(\"");
    return whole;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw InputError(concat("\"pattern\" ", text_, " ", what, " (at byte ", at_, ")"));
  }
  bool ahead(std::string_view word) const { return std::string_view(text_).substr(at_).starts_with(word); }
  bool take(std::string_view word) {
    const bool there = ahead(word);
    if (there) at_ += word.size();
    return there;
  }
  uint32_t next() {
    const Utf8Char character = utf8_char(std::string_view(text_).substr(at_));
    at_ += static_cast<size_t>(character.length);
    return character.code;
  }

  Node either(int depth) {
    if (depth > kDeepestGroup) fail("has groups that lie too deep in one another");
    Node all{.type = Node::kEither};
    do {
      all.children.push_back(sequence(depth));
    } while (take("|"));
    return all.children.size() == 1 ? std::move(all.children[0]) : all;
  }

  Node sequence(int depth) {
    Node all{.type = Node::kSequence};
    while (at_ < text_.size() && !ahead("|") && !ahead(")")) all.children.push_back(repeated(item(depth)));
    return all;
  }

  Node item(int depth) {
    if (take("(")) return group(depth);
    if (take("[")) return {.type = Node::kSet, .characters = char_class()};
    if (take("^")) return {.type = Node::kBegin};
    if (take("$")) return {.type = Node::kEnd};
    static const Characters kLineEnds = {{'\n', '\n'}, {'\r', '\r'}, {0x85, 0x85}, {0x2028, 0x2029}};
    if (take(".")) return {.type = Node::kSet, .characters = Characters::all().without(kLineEnds)};
    if (ahead("*") || ahead("+") || ahead("?") || counts()) fail("repeats nothing");
    if (!take("\\")) {
      const uint32_t character = next();
      return {.type = Node::kSet, .characters = {{character, character}}};
    }
    if (at_ < text_.size() && std::string_view("dDwWsS").find(text_[at_]) != std::string_view::npos) {
      return {.type = Node::kSet, .characters = class_escape(text_[at_++]).sure};
    }
    const uint32_t character = escape(false);
    return {.type = Node::kSet, .characters = {{character, character}}};
  }

  Node group(int depth) {
    if (take("?") && !take(":")) {
      const size_t end = text_.find('>', at_);
      const bool named = (take("<") || take("P<")) && !ahead("=") && !ahead("!") && end != std::string::npos;
      if (!named) fail("has a group with \"?\", of which only (?:...) is known here");
      at_ = end + 1;
    }
    Node inner = either(depth + 1);
    if (!take(")")) fail("has a \"(\" without its \")\"");
    return inner;
  }

  // Whether "{3}", "{3,}" or "{3,5}" comes next; any other "{" is a literal character.
  bool counts() const {
    if (!ahead("{")) return false;
    size_t at = at_ + 1;
    const auto digits = [&] {
      const size_t before = at;
      while (at < text_.size() && text_[at] >= '0' && text_[at] <= '9') ++at;
      return at > before;
    };
    if (!digits()) return false;
    if (at < text_.size() && text_[at] == ',') digits(), ++at, digits();
    return at < text_.size() && text_[at] == '}';
  }

  int64_t number() {
    int64_t value = 0;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') {
      value = std::min<int64_t>(value * 10 + (text_[at_++] - '0'), 1 << 20);
    }
    return value;
  }

  Node repeated(Node part) {
    const bool some = ahead("*") || ahead("+") || ahead("?") || counts();
    if (!some) return part;
    if (part.type == Node::kBegin || part.type == Node::kEnd) fail("repeats nothing");
    Node all{.type = Node::kRepeated};
    if (take("*")) {
      all.least = 0;
    } else if (take("+")) {
      all.least = 1;
    } else if (take("?")) {
      all.most = 1;
    } else {
      take("{");
      all.least = number();
      const bool range = take(",");
      all.most = !range ? all.least : ahead("}") ? -1 : number();
      take("}");
      if (all.most >= 0 && all.most < all.least) fail("repeats from more to less");
    }
    // A lazy quantifier matches the same texts.
    take("?");
    if (ahead("*") || ahead("+") || ahead("?") || counts()) fail("repeats what is repeated");
    all.children.push_back(std::move(part));
    return all;
  }

  uint32_t hexadecimal(size_t digits) {
    uint32_t value = 0;
    for (size_t i = 0; i < digits; ++i, ++at_) {
      const char c = at_ < text_.size() ? text_[at_] : ' ';
      if (std::isxdigit(static_cast<unsigned char>(c)) == 0) fail("has an escape that is not finished");
      value = value * 16 + static_cast<uint32_t>(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    return value;
  }

  // Reads an escaped character after the backslash.
  uint32_t escape(bool in_class) {
    static const std::string_view kLetters = "tnrfv0", kMeant("\t\n\r\f\v\0", 6);
    if (at_ == text_.size()) fail("ends with a \"\\\"");
    const char letter = text_[at_];
    if (const size_t found = kLetters.find(letter); found != std::string_view::npos) {
      ++at_;
      return static_cast<unsigned char>(kMeant[found]);
    }
    if (in_class && take("b")) return '\b';
    if (take("x")) return hexadecimal(2);
    if (take("u{")) {
      const size_t digits = std::min(text_.find('}', at_), text_.size()) - at_;
      const uint32_t value = digits > 0 && digits <= 6 ? hexadecimal(digits) : 0x110000;
      if (value > 0x10FFFF || !take("}")) fail("has an escape that is no character");
      return value;
    }
    if (take("u")) {
      const uint32_t value = hexadecimal(4);
      if (value < 0xD800 || value > 0xDFFF) return value;
      if (value > 0xDBFF || !take("\\u")) fail("has a half of a character");
      const uint32_t low = hexadecimal(4);
      if (low < 0xDC00 || low > 0xDFFF) fail("has a half of a character");
      return 0x10000 + ((value - 0xD800) << 10) + (low - 0xDC00);
    }
    if (std::isalnum(static_cast<unsigned char>(letter)) != 0) {
      fail(concat("has \"\\", letter, "\", which is not known here"));
    }
    return next();
  }

  Characters char_class() {
    const bool negated = take("^");
    // A negated class excludes `perhaps`.
    Characters sure, perhaps;
    while (at_ < text_.size() && !ahead("]")) {
      const bool set = at_ + 1 < text_.size() && text_[at_] == '\\' &&
                       std::string_view("dDwWsS").find(text_[at_ + 1]) != std::string_view::npos;
      if (set) {
        const ClassEscape those = class_escape(text_[at_ + 1]);
        at_ += 2;
        sure.add(those.sure);
        perhaps.add(those.perhaps);
        continue;
      }
      const uint32_t first = class_character();
      uint32_t last = first;
      if (ahead("-") && at_ + 1 < text_.size() && text_[at_ + 1] != ']') {
        const size_t before = at_;
        take("-");
        const bool behind = ahead("\\") && at_ + 1 < text_.size() &&
                            std::string_view("dDwWsS").find(text_[at_ + 1]) != std::string_view::npos;
        if (behind) at_ = before;  // the "-" is a literal
        last = behind ? first : class_character();
        if (behind) {
          take("-");
          sure.add({{'-', '-'}});
          perhaps.add({{'-', '-'}});
        }
      }
      if (last < first) fail("has a range that ends before it begins");
      sure.add({{first, last}});
      perhaps.add({{first, last}});
    }
    if (!take("]")) fail("has a \"[\" without its \"]\"");
    const Characters found = negated ? Characters::all().without(perhaps) : sure;
    if (found.empty()) fail("has a \"[ ]\" that no character fits");
    return found;
  }

  uint32_t class_character() {
    if (take("\\")) return escape(true);
    if (ahead("[") || ahead("&&") || ahead("--")) fail("has \"[\", \"&&\" or \"--\" inside of \"[ ]\"");
    return next();
  }

  const std::string& text_;
  size_t at_ = 0;
};

Fragments::Fragments(const std::string& expression) {
  add();
  end_ = build(ExpressionReader(expression).read(), 0);
}

int64_t Fragments::add() {
  fail_input_if(edges_.size() >= kMostFragments, "\"pattern\" repeats too much");
  edges_.emplace_back();
  return static_cast<int64_t>(edges_.size()) - 1;
}

int64_t Fragments::build(const Node& part, int64_t from) {
  const auto step = [&](Edge edge) {
    edge.to = add();
    edges_[static_cast<size_t>(from)].push_back(edge);
    return edge.to;
  };
  switch (part.type) {
    case Node::kSet:
      return step({.kind = kCharacters, .characters = part.characters});
    case Node::kBegin:
      return step({.kind = kBegin});
    case Node::kEnd:
      return step({.kind = kEnd});
    case Node::kRepeated:
      return build_repeated(part, from);
    case Node::kSequence:
      for (const Node& one : part.children) from = build(one, from);
      return from;
    case Node::kEither:
      break;
  }
  const int64_t end = add();
  for (const Node& one : part.children) {
    const int64_t begin = add();
    edges_[static_cast<size_t>(from)].push_back({.kind = kFree, .to = begin});
    const int64_t its = build(one, begin);
    edges_[static_cast<size_t>(its)].push_back({.kind = kFree, .to = end});
  }
  return end;
}

int64_t Fragments::build_repeated(const Node& part, int64_t from) {
  for (int64_t i = 0; i < part.least; ++i) from = build(part.children[0], from);
  const int64_t end = add();
  edges_[static_cast<size_t>(from)].push_back({.kind = kFree, .to = end});
  if (part.most < 0) {  // a loop
    const int64_t begin = add();
    edges_[static_cast<size_t>(from)].push_back({.kind = kFree, .to = begin});
    const int64_t its = build(part.children[0], begin);
    edges_[static_cast<size_t>(its)].push_back({.kind = kFree, .to = begin});
    edges_[static_cast<size_t>(its)].push_back({.kind = kFree, .to = end});
    return end;
  }
  for (int64_t i = part.least; i < part.most; ++i) {
    from = build(part.children[0], from);
    edges_[static_cast<size_t>(from)].push_back({.kind = kFree, .to = end});
  }
  return end;
}

}  // namespace cortado
