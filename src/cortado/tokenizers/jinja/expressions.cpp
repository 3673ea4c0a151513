#include <algorithm>
#include <charconv>

#include "cortado/tokenizers/jinja/parser.h"

namespace cortado::jinja {

// Expressions with commas between them; without a comma, the expression itself.
const Node* Parser::tuple(bool with_choice, bool in_brackets) {
  Nodes items;
  bool many = false;
  while (true) {
    if (many || in_brackets) {
      const bool ends =
          at_sign(")") || peek().type == Type::kBlockEnd || peek().type == Type::kPrintEnd || at_word("if");
      if (ends) break;
    }
    items.push_back(with_choice ? choice() : any_of());
    if (!skip_sign(",")) break;
    many = true;
  }
  if (!many && !items.empty()) return items[0];
  return &make(Kind::kTuple, std::move(items));
}

const Node* Parser::choice() {
  const Level level(*this);
  const Node* value = any_of();
  while (skip_word("if")) {
    const Node* condition = any_of();
    const Node* otherwise = skip_word("else") ? choice() : nullptr;
    value = &make(Kind::kChoice, {condition, value, otherwise});
  }
  return value;
}

// Operands that the operators join, from left to right.
const Node* Parser::chain(std::initializer_list<std::string_view> operators,
                          const std::function<const Node*()>& operand) {
  const Node* left = operand();
  while ((peek().type == Type::kSign || peek().type == Type::kName) &&
         std::ranges::find(operators, std::string_view(peek().text)) != operators.end()) {
    std::string sign = tokens_[at_++].text;
    Node& node = make(Kind::kBinary, {left, operand()});
    node.name = std::move(sign);
    left = &node;
  }
  return left;
}

const Node* Parser::any_of() {
  const Level level(*this);
  return chain({"or"}, [this] { return all_of(); });
}

const Node* Parser::all_of() {
  return chain({"and"}, [this] { return negation(); });
}

const Node* Parser::negation() {
  const Level level(*this);
  if (!skip_word("not")) return comparison();
  Node& node = make(Kind::kUnary, {negation()});
  node.name = "not";
  return &node;
}

const Node* Parser::comparison() {
  Nodes operands = {sum()};
  std::vector<std::string> words;
  while (true) {
    static constexpr std::string_view kSigns[] = {"==", "!=", "<", "<=", ">", ">="};
    if (peek().type == Type::kSign && std::ranges::find(kSigns, std::string_view(peek().text)) != std::end(kSigns)) {
      words.push_back(tokens_[at_++].text);
    } else if (skip_word("in")) {
      words.emplace_back("in");
    } else if (at_word("not") && peek(1).is(Type::kName, "in")) {
      at_ += 2;
      words.emplace_back("not in");
    } else {
      break;
    }
    operands.push_back(sum());
  }
  if (words.empty()) return operands[0];
  Node& node = make(Kind::kCompare, std::move(operands));
  node.words = std::move(words);
  return &node;
}

const Node* Parser::sum() {
  return chain({"+", "-"}, [this] { return joined(); });
}

const Node* Parser::joined() {
  return chain({"~"}, [this] { return product(); });
}

const Node* Parser::product() {
  return chain({"*", "/", "//", "%"}, [this] { return power(); });
}

const Node* Parser::power() {
  return chain({"**"}, [this] { return unary(); });
}

const Node* Parser::unary(bool with_filters) {
  const Level level(*this);
  const Node* node = nullptr;
  if (at_sign("-") || at_sign("+")) {
    std::string sign = tokens_[at_++].text;
    Node& made = make(Kind::kUnary, {unary(false)});
    made.name = std::move(sign);
    node = &made;
  } else {
    node = primary();
  }
  node = postfix(node);
  return with_filters ? filters(node) : node;
}

const Node* Parser::number(const Token& token) {
  Node& node = make(Kind::kConstant);
  const char* end = token.text.data() + token.text.size();
  if (token.type == Type::kFloat) {
    double value = 0;
    std::from_chars(token.text.data(), end, value);
    node.value = value;
  } else {
    int64_t value = 0;
    if (std::from_chars(token.text.data(), end, value).ec != std::errc()) refuse("a number is too large");
    node.value = value;
  }
  return &node;
}

const Node* Parser::primary() {
  const Token token = peek();
  if (token.type == Type::kEnd || token.type == Type::kBlockEnd || token.type == Type::kPrintEnd) {
    refuse("expected an expression");
  }
  ++at_;
  if (token.type == Type::kInteger || token.type == Type::kFloat) return number(token);
  if (token.type == Type::kText) {
    std::string text = token.text;
    while (peek().type == Type::kText) text += tokens_[at_++].text;
    Node& node = make(Kind::kConstant);
    node.value = constant(std::move(text));
    return &node;
  }
  if (token.type == Type::kName) {
    const bool yes = token.text == "true" || token.text == "True", no = token.text == "false" || token.text == "False";
    const bool none = token.text == "none" || token.text == "None";
    Node& node = make(yes || no || none ? Kind::kConstant : Kind::kName);
    node.name = token.text;
    if (yes || no) node.value = yes;
    return &node;
  }
  if (token.is(Type::kSign, "(")) {
    const Node* node = tuple(true, true);
    expect_sign(")");
    return node;
  }
  if (token.is(Type::kSign, "[")) {
    Nodes items;
    while (!skip_sign("]")) {
      if (!items.empty()) {
        expect_sign(",");
        if (skip_sign("]")) break;
      }
      items.push_back(expression());
    }
    return &make(Kind::kList, std::move(items));
  }
  if (token.is(Type::kSign, "{")) return dict();
  --at_;
  refuse(concat("unexpected '", token.text, "'"));
}

const Node* Parser::dict() {
  Nodes items;
  while (!skip_sign("}")) {
    if (!items.empty()) {
      expect_sign(",");
      if (skip_sign("}")) break;
    }
    items.push_back(expression());
    expect_sign(":");
    items.push_back(expression());
  }
  return &make(Kind::kDict, std::move(items));
}

const Node* Parser::postfix(const Node* node) {
  while (true) {
    if (at_sign(".") || at_sign("[")) {
      node = subscript(node);
    } else if (at_sign("(")) {
      node = invoked(node);
    } else {
      return node;
    }
  }
}

const Node* Parser::invoked(const Node* function) {
  Node& call = make(Kind::kInvoke, {function});
  arguments(call);
  return &call;
}

const Node* Parser::subscript(const Node* object) {
  if (skip_sign(".")) {
    if (peek().type == Type::kInteger) {
      const Token token = tokens_[at_++];
      const Node* place = number(token);
      return &make(Kind::kItem, {object, place});
    }
    std::string name = expect_name();
    Node& node = make(Kind::kAttribute, {object});
    node.name = std::move(name);
    return &node;
  }
  expect_sign("[");
  Nodes parts = {object};
  const auto part = [&]() -> const Node* { return at_sign(":") || at_sign("]") ? nullptr : expression(); };
  parts.push_back(part());
  if (at_sign(":")) {
    while (skip_sign(":") && parts.size() < 4) parts.push_back(part());
    parts.resize(4);
    expect_sign("]");
    return &make(Kind::kSlice, std::move(parts));
  }
  if (!parts[1] || at_sign(",")) refuse("expected one key");
  expect_sign("]");
  return &make(Kind::kItem, std::move(parts));
}

void Parser::arguments(Node& node) {
  expect_sign("(");
  bool first = true;
  while (!at_sign(")")) {
    if (!std::exchange(first, false)) {
      expect_sign(",");
      if (at_sign(")")) break;
    }
    if (at_sign("**")) refuse("** in a call is not supported");
    if (skip_sign("*")) {
      node.parts.push_back(&make(Kind::kSpread, {expression()}));
    } else if (peek().type == Type::kName && peek(1).is(Type::kSign, "=")) {
      std::string name = expect_name();
      ++at_;
      node.named.emplace_back(std::move(name), expression());
    } else {
      if (!node.named.empty()) refuse("an argument without a name follows one with a name");
      node.parts.push_back(expression());
    }
  }
  expect_sign(")");
}

std::string Parser::dotted_name() {
  std::string name = expect_name();
  while (skip_sign(".")) name += "." + expect_name();
  return name;
}

// Filters, tests and calls of their results.
const Node* Parser::filters(const Node* node) {
  while (true) {
    if (skip_sign("|")) {
      node = filter(node);
    } else if (skip_word("is")) {
      node = test(node);
    } else if (at_sign("(")) {
      node = invoked(node);
    } else {
      return node;
    }
  }
}

const Node* Parser::filter(const Node* operand) {
  Node& node = make(Kind::kFiltered, {operand});
  node.name = dotted_name();
  if (at_sign("(")) arguments(node);
  return &node;
}

const Node* Parser::test(const Node* operand) {
  const bool negated = skip_word("not");
  Node& node = make(Kind::kTest, {operand});
  node.name = dotted_name();
  const Token& next = peek();
  const bool value = next.type == Type::kText || next.type == Type::kInteger || next.type == Type::kFloat ||
                     next.is(Type::kSign, "[") || next.is(Type::kSign, "{") || next.type == Type::kName;
  if (at_sign("(")) {
    arguments(node);
  } else if (value && !at_word("else") && !at_word("or") && !at_word("and")) {
    if (at_word("is")) refuse("tests cannot be chained with is");
    if (!at_word("if") && !at_word("in") && !at_word("not") && !at_word("recursive")) {
      node.parts.push_back(postfix(primary()));
    }
  }
  if (!negated) return &node;
  Node& inverse = make(Kind::kUnary, {&node});
  inverse.name = "not";
  return &inverse;
}

}  // namespace cortado::jinja
