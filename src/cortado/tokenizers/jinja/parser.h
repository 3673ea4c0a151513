// A recursive-descent parser of templates; parser.cpp has the statements, expressions.cpp the expressions.
#pragma once

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <string_view>

#include "cortado/tokenizers/jinja/lexer.h"
#include "cortado/tokenizers/jinja/syntax.h"

namespace cortado::jinja {

class Parser {
 public:
  explicit Parser(const std::string& source) : tokens_(tokenize(source)) {}
  Program run();

 private:
  using Type = Token::Type;
  using Kind = Node::Kind;

  // How deep tags and brackets may be nested: a bracket is four levels. Python's own parser ends at a similar depth.
  static constexpr int kDeepest = 400;
  class Level {
   public:
    explicit Level(Parser& parser) : parser_(parser) {
      if (++parser_.depth_ > kDeepest) parser_.refuse("the template is nested too deep");
    }
    ~Level() { --parser_.depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    Parser& parser_;
  };

  const Token& peek(size_t ahead = 0) const { return tokens_[std::min(at_ + ahead, tokens_.size() - 1)]; }
  bool at_sign(std::string_view sign) const { return peek().is(Type::kSign, sign); }
  bool at_word(std::string_view word) const { return peek().is(Type::kName, word); }
  bool skip_sign(std::string_view sign);
  bool skip_word(std::string_view word);
  void expect_sign(std::string_view sign);
  void expect_word(std::string_view word);
  void expect(Type type, const char* what);
  std::string expect_name();
  [[noreturn]] void refuse(const std::string& what) const;
  Node& make(Kind kind, Nodes parts = {});

  Nodes body_until(std::initializer_list<std::string_view> ends);
  bool at_end_tag(std::initializer_list<std::string_view> ends) const;
  const Node* statement();
  const Node* if_statement();
  const Node* for_statement();
  const Node* set_statement();
  const Node* macro_statement();
  const Node* call_statement();
  const Node* filter_statement();
  const Node* with_statement();
  const Node* target(bool with_attribute, bool one);
  void parameters(Node& node);

  const Node* tuple(bool with_choice, bool in_brackets = false);
  const Node* expression() { return choice(); }
  const Node* choice();
  const Node* chain(std::initializer_list<std::string_view> operators, const std::function<const Node*()>& operand);
  const Node* any_of();
  const Node* all_of();
  const Node* negation();
  const Node* comparison();
  const Node* sum();
  const Node* joined();
  const Node* product();
  const Node* power();
  const Node* unary(bool with_filters = true);
  const Node* primary();
  const Node* number(const Token& token);
  const Node* dict();
  const Node* postfix(const Node* node);
  const Node* filters(const Node* node);
  const Node* filter(const Node* operand);
  const Node* test(const Node* operand);
  const Node* invoked(const Node* function);
  const Node* subscript(const Node* object);
  void arguments(Node& node);
  std::string dotted_name();

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
  Program program_;
};

}  // namespace cortado::jinja
