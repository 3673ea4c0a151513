// Executes a template.
#pragma once

#include <ctime>
#include <deque>
#include <string>
#include <vector>

#include "cortado/tokenizers/jinja/syntax.h"

namespace cortado::jinja {

// Variables. A macro looks its names up where it was defined.
struct Scope {
  const Scope* parent = nullptr;
  std::vector<std::pair<std::string, Value>> variables = {};

  const Value* find(std::string_view name) const;
  void set(const std::string& name, Value value);
};

class Renderer {
 public:
  Renderer(const Program& program, Budget& given, std::time_t now);

  Heap& heap() { return heap_; }
  Budget& budget() { return budget_; }
  std::time_t now() const { return now_; }
  void define(const std::string& name, Value value) { globals_.set(name, std::move(value)); }
  Text run();

  Value call(const Value& function, const Arguments& arguments);
  Text text(const Value& value);  // as a template prints it
  Value string(Text text) { return heap_.string(std::move(text)); }
  std::vector<Value> items(const Value& value) { return iterate(value, heap_, budget_); }

  // x.name and x[key], as Jinja looks them up.
  Value attribute(const Value& object, const std::string& name);
  Value item(const Value& object, const Value& key);
  Value filter(const std::string& name, const Value& value, const Arguments& arguments);
  bool test(const std::string& name, const Value& value, const Arguments& arguments);
  Value binary(const std::string& sign, const Value& a, const Value& b);

 private:
  enum class Flow { kNext, kBreak, kContinue };

  Scope& scope(const Scope* parent);
  Flow execute(const Nodes& body, Scope& scope, Text& out);
  Flow execute(const Node& node, Scope& scope, Text& out);
  Flow loop(const Node& node, Scope& scope, Text& out);
  Value body_text(const Nodes& body, Scope& scope);
  void set(const Node& node, Scope& scope);
  void assign(const Node& target, const Value& value, Scope& scope);
  Value macro(const Node& node, const std::string& name, const Scope& scope);
  Value run_macro(const Node& node, const std::string& name, const Scope& defined, const Arguments& arguments);
  void print(const Value& value, Text& out);
  Value filtered(const Node* node, const Value& value, Scope& scope);

  Value evaluate(const Node* node, Scope& scope);
  Value choose(const Node& node, Scope& scope);
  Value compared(const Node& node, Scope& scope);
  Value unary(const Node& node, Scope& scope);
  Value invoke(const Node& node, Scope& scope, const Value* caller);
  Value slice(const Node& node, Scope& scope);
  std::vector<Value> values(const Nodes& nodes, Scope& scope);
  Arguments arguments(const Node& node, Scope& scope);

  const Program& program_;
  Budget& budget_;
  std::time_t now_;
  std::deque<Scope> scopes_;
  Heap heap_;  // before what refers to it ends
  Scope globals_;
};

// Methods of texts, lists, dicts and loops, by their Python names.
bool has_method(const Value& object, std::string_view name);
Value call_method(Renderer& run, const Value& object, const std::string& name, const Arguments& arguments);

using Filter = Value (*)(Renderer& run, const Value& value, const Arguments& arguments);
Filter find_filter(std::string_view name);       // null: unknown
Filter find_list_filter(std::string_view name);  // those that work on sequences
using Test = bool (*)(Renderer& run, const Value& value, const Arguments& arguments);
Test find_test(std::string_view name);

// The functions that every template has: range, dict, namespace, raise_exception, strftime_now, ...
void define_functions(Renderer& run);

// "%s is %d" % (...) and "{} is {}".format(...).
Text percent_format(Renderer& run, const Text& form, const Value& values);
Text brace_format(Renderer& run, const Text& form, const Arguments& arguments);

}  // namespace cortado::jinja
