#include <algorithm>
#include <cmath>

#include "cortado/tokenizers/jinja/renderer.h"

namespace cortado::jinja {

Value Renderer::evaluate(const Node* node, Scope& scope) {
  const Budget::Level level(budget_);
  budget_.step();
  switch (node->kind) {
    case Node::Kind::kConstant:
      return node->value;
    case Node::Kind::kName: {
      const Value* value = scope.find(node->name);
      return value ? *value : Undefined{"'" + node->name + "' is undefined"};
    }
    case Node::Kind::kList:
      return heap_.list(values(node->parts, scope));
    case Node::Kind::kTuple:
      return heap_.list(values(node->parts, scope), List::Kind::kTuple);
    case Node::Kind::kDict: {
      Dict dict;
      for (size_t i = 0; i < node->parts.size(); i += 2) {
        budget_.step(dict.items.size() / 4);
        const Value key = evaluate(node->parts[i], scope);
        dict.set(key, evaluate(node->parts[i + 1], scope));
      }
      return heap_.dict(std::move(dict.items));
    }
    case Node::Kind::kUnary:
      return unary(*node, scope);
    case Node::Kind::kBinary:
    case Node::Kind::kChoice:
      return choose(*node, scope);
    case Node::Kind::kCompare:
      return compared(*node, scope);
    case Node::Kind::kAttribute:
      return attribute(evaluate(node->parts[0], scope), node->name);
    case Node::Kind::kItem: {
      const Value object = evaluate(node->parts[0], scope);
      return item(object, evaluate(node->parts[1], scope));
    }
    case Node::Kind::kSlice:
      return slice(*node, scope);
    case Node::Kind::kInvoke:
      return invoke(*node, scope, nullptr);
    case Node::Kind::kFiltered: {
      const Value operand = evaluate(node->parts[0], scope);
      return filter(node->name, operand, arguments(*node, scope));
    }
    case Node::Kind::kTest: {
      const Value operand = evaluate(node->parts[0], scope);
      return test(node->name, operand, arguments(*node, scope));
    }
    default:
      fail("line ", node->line, ": not an expression");
  }
}

std::vector<Value> Renderer::values(const Nodes& nodes, Scope& scope) {
  std::vector<Value> all;
  all.reserve(nodes.size());
  for (const Node* node : nodes) all.push_back(evaluate(node, scope));
  return all;
}

// The arguments of a call, a filter or a test; the first part is what they are given to.
Arguments Renderer::arguments(const Node& node, Scope& scope) {
  Arguments given;
  for (size_t i = 1; i < node.parts.size(); ++i) {
    if (node.parts[i]->kind != Node::Kind::kSpread) {
      given.all.push_back(evaluate(node.parts[i], scope));
      continue;
    }
    for (Value& value : items(evaluate(node.parts[i]->parts[0], scope))) given.all.push_back(std::move(value));
  }
  for (const auto& [name, value] : node.named) given.named.emplace_back(name, evaluate(value, scope));
  return given;
}

Value Renderer::invoke(const Node& node, Scope& scope, const Value* caller) {
  const Node& callee = *node.parts[0];
  const auto given = [&] {
    Arguments all = arguments(node, scope);
    if (caller) all.named.emplace_back("caller", *caller);
    return all;
  };
  if (callee.kind != Node::Kind::kAttribute) {
    const Value function = evaluate(&callee, scope);
    return call(function, given());
  }
  const Value object = evaluate(callee.parts[0], scope);
  if (has_method(object, callee.name)) return call_method(*this, object, callee.name, given());
  const Value function = attribute(object, callee.name);
  return call(function, given());
}

// "and", "or" and a choice do not evaluate all their parts.
Value Renderer::choose(const Node& node, Scope& scope) {
  Value first = evaluate(node.parts[0], scope);
  if (node.kind == Node::Kind::kChoice) {
    if (truth(first)) return evaluate(node.parts[1], scope);
    if (node.parts[2]) return evaluate(node.parts[2], scope);
    return Undefined{"the inline if-expression evaluated to false and no else section was defined"};
  }
  if (node.name == "and") return truth(first) ? evaluate(node.parts[1], scope) : first;
  if (node.name == "or") return truth(first) ? first : evaluate(node.parts[1], scope);
  return binary(node.name, first, evaluate(node.parts[1], scope));
}

Value Renderer::compared(const Node& node, Scope& scope) {
  Value left = evaluate(node.parts[0], scope);
  for (size_t i = 0; i < node.words.size(); ++i) {
    const std::string& word = node.words[i];
    Value right = evaluate(node.parts[i + 1], scope);
    bool holds = false;
    if (word == "==" || word == "!=") {
      holds = equal(left, right, budget_) == (word == "==");
    } else if (word == "in" || word == "not in") {
      holds = contains(right, left, budget_) == (word == "in");
    } else {
      const bool unordered = as_number(left) && as_number(right) && std::isnan(*as_number(left) + *as_number(right));
      const int order = compare(left, right, budget_);
      holds = !unordered && (word == "<"    ? order < 0
                             : word == "<=" ? order <= 0
                             : word == ">"  ? order > 0
                                            : order >= 0);
    }
    if (!holds) return false;
    left = std::move(right);
  }
  return true;
}

Value Renderer::unary(const Node& node, Scope& scope) {
  const Value operand = evaluate(node.parts[0], scope);
  if (node.name == "not") return !truth(operand);
  if (const auto* missing = as<Undefined>(operand)) fail(missing->why);
  const bool minus = node.name == "-";
  if (const auto* number = as<double>(operand)) return minus ? -*number : *number;
  const auto integer = as_integer(operand);
  if (!integer || *integer == INT64_MIN) fail("bad operand type for unary ", node.name, ": '", type_name(operand), "'");
  return minus ? -*integer : *integer;
}

namespace {

[[noreturn]] void refuse_operands(const std::string& sign, const Value& a, const Value& b) {
  for (const Value* value : {&a, &b}) {
    if (const auto* missing = as<Undefined>(*value)) fail(missing->why);
  }
  fail("unsupported operand type(s) for ", sign, ": '", type_name(a), "' and '", type_name(b), "'");
}

double real_result(const std::string& sign, double a, double b) {
  if (sign == "+") return a + b;
  if (sign == "-") return a - b;
  if (sign == "*") return a * b;
  if (sign == "**") return std::pow(a, b);
  if (b == 0) fail("division by zero");
  if (sign == "/") return a / b;
  const double quotient = std::floor(a / b);
  return sign == "//" ? quotient : a - b * quotient;
}

int64_t power_of(int64_t base, int64_t exponent) {
  int64_t result = 1;
  for (int64_t i = 0; i < exponent && result != 0 && (base < -1 || base > 1 || i < 2); ++i) {
    if (__builtin_mul_overflow(result, base, &result)) fail("a number is too large");
  }
  if (base == 1 || exponent == 0) return 1;
  if (base == -1) return exponent % 2 == 0 ? 1 : -1;
  return result;
}

Value whole_result(const std::string& sign, int64_t a, int64_t b) {
  int64_t result = 0;
  bool wide = false;
  if (sign == "+") wide = __builtin_add_overflow(a, b, &result);
  if (sign == "-") wide = __builtin_sub_overflow(a, b, &result);
  if (sign == "*") wide = __builtin_mul_overflow(a, b, &result);
  if (sign == "**" && b >= 0) return power_of(a, b);
  if (sign == "/" || sign == "**") return real_result(sign, static_cast<double>(a), static_cast<double>(b));
  if (sign == "//" || sign == "%") {
    if (b == 0) fail("integer modulo or division by zero");
    if (b == -1) return sign == "%" ? Value(int64_t{0}) : whole_result("-", 0, a);
    result = a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);  // Python rounds down
    if (sign == "%") result = a - result * b;
  }
  if (wide) fail("a number is too large");
  return result;
}

}  // namespace

Value Renderer::binary(const std::string& sign, const Value& a, const Value& b) {
  const Text* left = as_text(a);
  const Text* right = as_text(b);
  if (sign == "~" || (sign == "+" && left && right)) {
    Text joined = text(a), more = text(b);
    const bool html = sign == "+" && (joined.html() || more.html());
    if (html) {
      joined = escape(joined);
      more = escape(more);
    }
    joined.append(more);
    joined.set_html(html);
    return string(std::move(joined));
  }
  if (sign == "%" && left) return string(percent_format(*this, *left, b));
  const auto i = as_integer(a), j = as_integer(b);
  if (i && j) return whole_result(sign, *i, *j);
  const auto x = as_number(a), y = as_number(b);
  if (x && y) return real_result(sign, *x, *y);
  const List* one = as_list(a);
  const List* two = as_list(b);
  if (sign == "+" && one && two && one->kind == two->kind && one->kind <= List::Kind::kTuple) {
    budget_.take((one->items.size() + two->items.size()) * sizeof(Value));
    auto all = one->items;
    all.insert(all.end(), two->items.begin(), two->items.end());
    return heap_.list(std::move(all), one->kind);
  }
  const auto count = i ? i : j;
  if (sign != "*" || !count) refuse_operands(sign, a, b);
  const auto times = static_cast<size_t>(std::clamp<int64_t>(*count, 0, Budget::kBytes));
  if (const Text* repeated = left ? left : right) {
    budget_.take(times * std::min<size_t>(repeated->size(), Budget::kBytes));
    budget_.give_back(times * std::min<size_t>(repeated->size(), Budget::kBytes));
    Text out;
    for (size_t k = 0; k < times && !repeated->empty(); ++k) out.append(*repeated);
    return string(std::move(out));
  }
  const List* list = one ? one : two;
  if (!list || list->kind > List::Kind::kTuple) refuse_operands(sign, a, b);
  budget_.take(times * list->items.size() * sizeof(Value));
  std::vector<Value> all;
  for (size_t k = 0; k < times; ++k) all.insert(all.end(), list->items.begin(), list->items.end());
  return heap_.list(std::move(all), list->kind);
}

}  // namespace cortado::jinja
