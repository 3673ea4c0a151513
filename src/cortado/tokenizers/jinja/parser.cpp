#include "cortado/tokenizers/jinja/parser.h"

#include <algorithm>

namespace cortado::jinja {

void Parser::refuse(const std::string& what) const { fail("line ", peek().line, ": ", what); }

bool Parser::skip_sign(std::string_view sign) {
  const bool there = at_sign(sign);
  if (there) ++at_;
  return there;
}

bool Parser::skip_word(std::string_view word) {
  const bool there = at_word(word);
  if (there) ++at_;
  return there;
}

void Parser::expect_sign(std::string_view sign) {
  if (!skip_sign(sign)) refuse(concat("expected '", sign, "', got '", peek().text, "'"));
}

void Parser::expect_word(std::string_view word) {
  if (!skip_word(word)) refuse(concat("expected '", word, "', got '", peek().text, "'"));
}

void Parser::expect(Type type, const char* what) {
  if (peek().type != type) refuse(concat("expected ", what, ", got '", peek().text, "'"));
  ++at_;
}

std::string Parser::expect_name() {
  if (peek().type != Type::kName) refuse(concat("expected a name, got '", peek().text, "'"));
  return tokens_[at_++].text;
}

Node& Parser::make(Kind kind, Nodes parts) {
  program_.nodes.push_back({.kind = kind, .line = peek().line, .parts = std::move(parts)});
  return program_.nodes.back();
}

Program Parser::run() {
  program_.body = body_until({});
  return std::move(program_);
}

bool Parser::at_end_tag(std::initializer_list<std::string_view> ends) const {
  if (peek().type != Type::kBlockBegin || peek(1).type != Type::kName) return false;
  return std::ranges::find(ends, std::string_view(peek(1).text)) != ends.end();
}

// Statements up to one of the tags, whose name is then the next token; without tags, up to the end.
Nodes Parser::body_until(std::initializer_list<std::string_view> ends) {
  const Level level(*this);
  Nodes body;
  while (peek().type != Type::kEnd) {
    if (at_end_tag(ends)) {
      ++at_;
      return body;
    }
    if (peek().type == Type::kData) {
      Node& node = make(Kind::kData);
      node.value = constant(tokens_[at_++].text);
      body.push_back(&node);
    } else if (peek().type == Type::kPrintBegin) {
      ++at_;
      const Node* printed = tuple(true);
      body.push_back(&make(Kind::kPrint, {printed}));
      expect(Type::kPrintEnd, "'}}'");
    } else {
      expect(Type::kBlockBegin, "a tag");
      body.push_back(statement());
    }
  }
  if (ends.size() > 0) refuse(concat("the template ends before {% ", *(ends.end() - 1), " %}"));
  return body;
}

const Node* Parser::statement() {
  const std::string tag = expect_name();
  if (tag == "if") return if_statement();
  if (tag == "for") return for_statement();
  if (tag == "set") return set_statement();
  if (tag == "macro") return macro_statement();
  if (tag == "call") return call_statement();
  if (tag == "filter") return filter_statement();
  if (tag == "with") return with_statement();
  if (tag == "break" || tag == "continue") {
    Node& node = make(tag == "break" ? Kind::kBreak : Kind::kContinue);
    expect(Type::kBlockEnd, "'%}'");
    return &node;
  }
  if (tag == "generation") {  // marks what a model learns from
    Node& node = make(Kind::kScope);
    expect(Type::kBlockEnd, "'%}'");
    node.body = body_until({"endgeneration"});
    ++at_;
    expect(Type::kBlockEnd, "'%}'");
    return &node;
  }
  refuse(concat("unknown tag '", tag, "'"));
}

const Node* Parser::if_statement() {
  Node& node = make(Kind::kIf);
  Node* last = &node;
  while (true) {  // {% elif %} is an {% if %} in the other branch
    last->parts = {tuple(false)};
    expect(Type::kBlockEnd, "'%}'");
    last->body = body_until({"elif", "else", "endif"});
    const std::string tag = expect_name();
    if (tag == "elif") {
      Node& next = make(Kind::kIf);
      last->otherwise = {&next};
      last = &next;
      continue;
    }
    if (tag == "else") {
      expect(Type::kBlockEnd, "'%}'");
      last->otherwise = body_until({"endif"});
      expect_word("endif");
    }
    expect(Type::kBlockEnd, "'%}'");
    return &node;
  }
}

const Node* Parser::for_statement() {
  Node& node = make(Kind::kFor);
  const Node* each = target(false, false);
  expect_word("in");
  const Node* sequence = tuple(false);
  const Node* condition = skip_word("if") ? expression() : nullptr;
  if (at_word("recursive")) refuse("recursive loops are not supported");
  node.parts = {each, sequence, condition};
  expect(Type::kBlockEnd, "'%}'");
  node.body = body_until({"else", "endfor"});
  if (expect_name() == "else") {
    expect(Type::kBlockEnd, "'%}'");
    node.otherwise = body_until({"endfor"});
    expect_word("endfor");
  }
  expect(Type::kBlockEnd, "'%}'");
  return &node;
}

const Node* Parser::set_statement() {
  Node& node = make(Kind::kSet);
  const Node* what = target(true, false);
  if (skip_sign("=")) {
    node.parts = {what, tuple(true)};
    expect(Type::kBlockEnd, "'%}'");
    return &node;
  }
  const Node* filters = nullptr;
  while (skip_sign("|")) filters = filter(filters);
  node.parts = {what, nullptr, filters};
  expect(Type::kBlockEnd, "'%}'");
  node.body = body_until({"endset"});
  ++at_;
  expect(Type::kBlockEnd, "'%}'");
  return &node;
}

void Parser::parameters(Node& node) {
  expect_sign("(");
  while (!at_sign(")")) {
    if (!node.named.empty()) {
      expect_sign(",");
      if (at_sign(")")) break;
    }
    std::string name = expect_name();
    const Node* fallback = skip_sign("=") ? expression() : nullptr;
    node.named.emplace_back(std::move(name), fallback);
  }
  expect_sign(")");
}

const Node* Parser::macro_statement() {
  Node& node = make(Kind::kMacro);
  node.name = expect_name();
  parameters(node);
  expect(Type::kBlockEnd, "'%}'");
  node.body = body_until({"endmacro"});
  ++at_;
  expect(Type::kBlockEnd, "'%}'");
  return &node;
}

const Node* Parser::call_statement() {
  Node& node = make(Kind::kCall);
  if (at_sign("(")) parameters(node);
  node.parts = {expression()};
  if (node.parts[0]->kind != Kind::kInvoke) refuse("expected a call");
  expect(Type::kBlockEnd, "'%}'");
  node.body = body_until({"endcall"});
  ++at_;
  expect(Type::kBlockEnd, "'%}'");
  return &node;
}

const Node* Parser::filter_statement() {
  Node& node = make(Kind::kFilter);
  const Node* filters = filter(nullptr);
  while (skip_sign("|")) filters = filter(filters);
  node.parts = {filters};
  expect(Type::kBlockEnd, "'%}'");
  node.body = body_until({"endfilter"});
  ++at_;
  expect(Type::kBlockEnd, "'%}'");
  return &node;
}

const Node* Parser::with_statement() {
  Node& node = make(Kind::kWith);
  while (peek().type != Type::kBlockEnd) {
    if (!node.named.empty()) expect_sign(",");
    std::string name = expect_name();
    expect_sign("=");
    node.named.emplace_back(std::move(name), expression());
  }
  expect(Type::kBlockEnd, "'%}'");
  node.body = body_until({"endwith"});
  ++at_;
  expect(Type::kBlockEnd, "'%}'");
  return &node;
}

// What a loop or {% set %} assigns to: a name, names, or an attribute of a namespace.
const Node* Parser::target(bool with_attribute, bool one) {
  const Level level(*this);
  Nodes targets;
  bool many = false;
  while (true) {
    if (skip_sign("(")) {
      targets.push_back(target(false, false));
      expect_sign(")");
    } else {
      std::string name = expect_name();
      Node& variable = make(Kind::kName);
      variable.name = std::move(name);
      targets.push_back(&variable);
      if (with_attribute && skip_sign(".")) {
        std::string attribute = expect_name();
        Node& node = make(Kind::kAttribute, {targets.back()});
        node.name = std::move(attribute);
        targets.back() = &node;
      }
    }
    if (one || !skip_sign(",")) break;
    many = true;
    if (at_word("in") || at_sign("=") || at_sign(")") || peek().type == Type::kBlockEnd) break;
  }
  return many ? &make(Kind::kTuple, std::move(targets)) : targets[0];
}

Program parse(const std::string& source) { return Parser(source).run(); }

}  // namespace cortado::jinja
