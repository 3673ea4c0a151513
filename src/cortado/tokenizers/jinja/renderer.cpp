#include "cortado/tokenizers/jinja/renderer.h"

#include <algorithm>

namespace cortado::jinja {

const Value* Scope::find(std::string_view name) const {
  for (const Scope* scope = this; scope; scope = scope->parent) {
    for (const auto& [known, value] : scope->variables) {
      if (known == name) return &value;
    }
  }
  return nullptr;
}

void Scope::set(const std::string& name, Value value) {
  const auto found = std::ranges::find_if(variables, [&](const auto& variable) { return variable.first == name; });
  if (found == variables.end()) {
    variables.emplace_back(name, std::move(value));
  } else {
    found->second = std::move(value);
  }
}

Renderer::Renderer(const Program& program, Budget& given, std::time_t now)
    : program_(program), budget_(given), now_(now), heap_(given) {
  define_functions(*this);
}

Text Renderer::run() {
  Text out;
  execute(program_.body, scope(&globals_), out);
  return out;
}

Scope& Renderer::scope(const Scope* parent) {
  budget_.take(sizeof(Scope) + 4 * sizeof(Value));
  scopes_.push_back({parent});
  return scopes_.back();
}

Text Renderer::text(const Value& value) {
  const auto* list = as<List*>(value);
  if (list && (*list)->kind > List::Kind::kTuple) fail("the chat template prints a sequence that has no text");
  return to_text(value, budget_);
}

void Renderer::print(const Value& value, Text& out) {
  const Text* ready = as_text(value);
  const Text made = ready ? Text() : text(value);
  const Text& printed = ready ? *ready : made;
  budget_.take(printed.size());
  out.append(printed);
}

Value Renderer::body_text(const Nodes& body, Scope& scope) {
  Text out;
  execute(body, scope, out);
  budget_.give_back(out.size());
  return string(std::move(out));
}

Renderer::Flow Renderer::execute(const Nodes& body, Scope& scope, Text& out) {
  const Budget::Level level(budget_);
  for (const Node* node : body) {
    const Flow flow = execute(*node, scope, out);
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Renderer::Flow Renderer::execute(const Node& node, Scope& scope, Text& out) {
  budget_.step();
  switch (node.kind) {
    case Node::Kind::kData:
      print(node.value, out);
      break;
    case Node::Kind::kPrint:
      print(evaluate(node.parts[0], scope), out);
      break;
    case Node::Kind::kIf:
      return execute(truth(evaluate(node.parts[0], scope)) ? node.body : node.otherwise, scope, out);
    case Node::Kind::kFor:
      return loop(node, scope, out);
    case Node::Kind::kSet:
      set(node, scope);
      break;
    case Node::Kind::kMacro:
      scope.set(node.name, macro(node, node.name, scope));
      break;
    case Node::Kind::kCall: {
      const Value caller = macro(node, "caller", scope);
      print(invoke(*node.parts[0], scope, &caller), out);
      break;
    }
    case Node::Kind::kFilter:
      print(filtered(node.parts[0], body_text(node.body, this->scope(&scope)), scope), out);
      break;
    case Node::Kind::kWith: {
      Scope& inner = this->scope(&scope);
      for (const auto& [name, value] : node.named) inner.set(name, evaluate(value, scope));
      return execute(node.body, inner, out);
    }
    case Node::Kind::kScope:
      return execute(node.body, this->scope(&scope), out);
    case Node::Kind::kBreak:
      return Flow::kBreak;
    case Node::Kind::kContinue:
      return Flow::kContinue;
    default:
      fail("line ", node.line, ": not a statement");
  }
  return Flow::kNext;
}

Renderer::Flow Renderer::loop(const Node& node, Scope& outer, Text& out) {
  std::vector<Value> visited;
  for (Value& value : iterate(evaluate(node.parts[1], outer), heap_, budget_)) {
    if (node.parts[2]) {
      Scope& inner = scope(&outer);
      assign(*node.parts[0], value, inner);
      if (!truth(evaluate(node.parts[2], inner))) continue;
    }
    visited.push_back(std::move(value));
  }
  if (visited.empty()) return execute(node.otherwise, scope(&outer), out);
  Loop* state = heap_.loop(std::move(visited));
  for (; state->at < state->items.size(); ++state->at) {
    Scope& inner = scope(&outer);
    inner.set("loop", state);
    assign(*node.parts[0], state->items[state->at], inner);
    if (execute(node.body, inner, out) == Flow::kBreak) break;
  }
  return Flow::kNext;
}

void Renderer::set(const Node& node, Scope& scope) {
  if (node.parts[1]) return assign(*node.parts[0], evaluate(node.parts[1], scope), scope);
  const Value text = body_text(node.body, this->scope(&scope));
  assign(*node.parts[0], filtered(node.parts[2], text, scope), scope);
}

void Renderer::assign(const Node& target, const Value& value, Scope& scope) {
  if (target.kind == Node::Kind::kName) return scope.set(target.name, value);
  if (target.kind == Node::Kind::kAttribute) {
    const auto object = evaluate(target.parts[0], scope);
    const auto* space = as<Namespace*>(object);
    if (!space) fail("line ", target.line, ": cannot assign attribute on non-namespace object");
    if (target.name.starts_with('_')) fail("line ", target.line, ": names in a namespace do not begin with _");
    Value* known = (*space)->find(target.name);
    if (known) {
      *known = value;
    } else {
      budget_.take(2 * sizeof(Value));
      (*space)->items.emplace_back(target.name, value);
    }
    return;
  }
  const auto values = items(value);
  if (values.size() != target.parts.size()) {
    fail("line ", target.line, ": ", target.parts.size(), " names for ", values.size(), " values");
  }
  for (size_t i = 0; i < values.size(); ++i) assign(*target.parts[i], values[i], scope);
}

Value Renderer::macro(const Node& node, const std::string& name, const Scope& scope) {
  return heap_.function({name, [&node, name, &scope](Renderer& run, const Arguments& arguments) {
                           return run.run_macro(node, name, scope, arguments);
                         }});
}

namespace {

// Whether a macro's body reads a variable that no parameter defines (varargs, kwargs).
bool reads(const Nodes& nodes, std::string_view name);
bool reads(const Node* node, std::string_view name) {
  if (!node) return false;
  if (node->kind == Node::Kind::kName && node->name == name) return true;
  const auto in = [&](const auto& named) { return reads(named.second, name); };
  return reads(node->parts, name) || reads(node->body, name) || reads(node->otherwise, name) ||
         std::ranges::any_of(node->named, in);
}
bool reads(const Nodes& nodes, std::string_view name) {
  return std::ranges::any_of(nodes, [&](const Node* node) { return reads(node, name); });
}

}  // namespace

Value Renderer::run_macro(const Node& node, const std::string& name, const Scope& defined, const Arguments& given) {
  const Budget::Level level(budget_);
  Scope& inner = scope(&defined);
  const auto& parameters = node.named;
  if (given.all.size() > parameters.size()) {
    if (!reads(node.body, "varargs"))
      fail("macro '", name, "' takes not more than ", parameters.size(), " argument(s)");
    const auto begin = given.all.begin() + static_cast<std::ptrdiff_t>(parameters.size());
    inner.set("varargs", heap_.list({begin, given.all.end()}, List::Kind::kTuple));
  }
  std::vector<std::pair<Value, Value>> others;
  for (const auto& [key, value] : given.named) {
    const auto is_key = [&](const auto& parameter) { return parameter.first == key; };
    if (std::ranges::any_of(parameters, is_key)) continue;
    if (key == "caller") {
      inner.set(key, value);
    } else {
      if (!reads(node.body, "kwargs")) fail("macro '", name, "' takes no keyword argument '", key, "'");
      others.emplace_back(string(key), value);
    }
  }
  if (reads(node.body, "kwargs")) inner.set("kwargs", heap_.dict(std::move(others)));
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto& [key, fallback] = parameters[i];
    const Value* value = given.get(i, key);
    if (value) {
      inner.set(key, *value);
    } else if (fallback) {
      inner.set(key, evaluate(fallback, inner));
    } else {
      inner.set(key, Undefined{"parameter '" + key + "' was not provided"});
    }
  }
  return body_text(node.body, inner);
}

Value Renderer::filtered(const Node* node, const Value& value, Scope& scope) {
  if (!node) return value;
  const Value operand = filtered(node->parts[0], value, scope);
  return filter(node->name, operand, arguments(*node, scope));
}

Value Renderer::filter(const std::string& name, const Value& value, const Arguments& given) {
  Filter filter = find_filter(name);
  if (!filter) filter = find_list_filter(name);
  if (!filter) fail("No filter named '", name, "'");
  budget_.step();
  return filter(*this, value, given);
}

bool Renderer::test(const std::string& name, const Value& value, const Arguments& given) {
  const Test test = find_test(name);
  if (!test) fail("No test named '", name, "'");
  return test(*this, value, given);
}

Value Renderer::call(const Value& function, const Arguments& given) {
  const Budget::Level level(budget_);
  if (const auto* missing = as<Undefined>(function)) fail(missing->why);
  const auto* known = as<const Function*>(function);
  if (!known) fail("'", type_name(function), "' object is not callable");
  return (*known)->call(*this, given);
}

}  // namespace cortado::jinja
