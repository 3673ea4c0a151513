#include <algorithm>
#include <unordered_map>

#include "cortado/tokenizers/jinja/renderer.h"

namespace cortado::jinja {
namespace {

const Value& operand_of(const Arguments& given) {
  if (given.all.size() != 1) fail("the test takes one argument, got ", given.all.size());
  return given.all[0];
}

int64_t whole(const Value& value) {
  const auto integer = as_integer(value);
  if (!integer) fail("'", type_name(value), "' object cannot be interpreted as an integer");
  return *integer;
}

int64_t remainder_of(const Value& value, int64_t by) {
  if (by == 0) fail("integer modulo by zero");
  return by == -1 ? 0 : whole(value) % by;
}

bool is_iterable(const Value& value) {
  return as_text(value) || as_list(value) || as_dict(value) || is_undefined(value) || as<Loop*>(value);
}

bool is_sequence(const Value& value) {
  const List* list = as_list(value);
  return list ? list->kind <= List::Kind::kRange : as_text(value) || as_dict(value) || is_undefined(value);
}

bool is_same(const Value& a, const Value& b) {
  if (a.index() != b.index()) return false;
  if (as_list(a)) return as_list(a) == as_list(b);
  if (as_dict(a)) return as_dict(a) == as_dict(b);
  if (as_text(a)) return as_text(a)->bytes() == as_text(b)->bytes();
  return is_none(a) || as_number(a) == as_number(b);
}

bool has_case(const Value& value, const char* method, Renderer& run) {
  return truth(call_method(run, run.string(run.text(value)), method, {}));
}

#define HOLDS(expression)                                                       \
  [](Renderer& run, const Value& value, const Arguments& given) -> bool {       \
    static_cast<void>(run), static_cast<void>(value), static_cast<void>(given); \
    return expression;                                                          \
  }

const std::unordered_map<std::string_view, Test>& tests() {
  static const Test is_equal = HOLDS(equal(value, operand_of(given), run.budget()));
  static const Test differs = HOLDS(!equal(value, operand_of(given), run.budget()));
  static const Test less = HOLDS(compare(value, operand_of(given), run.budget()) < 0);
  static const Test at_most = HOLDS(compare(value, operand_of(given), run.budget()) <= 0);
  static const Test greater = HOLDS(compare(value, operand_of(given), run.budget()) > 0);
  static const Test at_least = HOLDS(compare(value, operand_of(given), run.budget()) >= 0);
  static const std::unordered_map<std::string_view, Test> all = {
      {"defined", HOLDS(!is_undefined(value))},
      {"undefined", HOLDS(is_undefined(value))},
      {"none", HOLDS(is_none(value))},
      {"boolean", HOLDS(as<bool>(value) != nullptr)},
      {"true", HOLDS(as<bool>(value) && *as<bool>(value))},
      {"false", HOLDS(as<bool>(value) && !*as<bool>(value))},
      {"integer", HOLDS(as<int64_t>(value) != nullptr)},
      {"float", HOLDS(as<double>(value) != nullptr)},
      {"number", HOLDS(as_number(value).has_value())},
      {"string", HOLDS(as_text(value) != nullptr)},
      {"mapping", HOLDS(as_dict(value) != nullptr)},
      {"sequence", HOLDS(is_sequence(value))},
      {"iterable", HOLDS(is_iterable(value))},
      {"callable", HOLDS(as<const Function*>(value) || is_undefined(value))},
      {"odd", HOLDS(remainder_of(value, 2) != 0)},
      {"even", HOLDS(remainder_of(value, 2) == 0)},
      {"divisibleby", HOLDS(remainder_of(value, whole(operand_of(given))) == 0)},
      {"lower", HOLDS(has_case(value, "islower", run))},
      {"upper", HOLDS(has_case(value, "isupper", run))},
      {"in", HOLDS(contains(operand_of(given), value, run.budget()))},
      {"sameas", HOLDS(is_same(value, operand_of(given)))},
      {"filter",
       HOLDS(as_text(value) && (find_filter(as_text(value)->bytes()) || find_list_filter(as_text(value)->bytes())))},
      {"test", HOLDS(as_text(value) && find_test(as_text(value)->bytes()))},
      {"escaped", HOLDS(false)},
      {"eq", is_equal},
      {"equalto", is_equal},
      {"==", is_equal},
      {"ne", differs},
      {"!=", differs},
      {"lt", less},
      {"lessthan", less},
      {"<", less},
      {"le", at_most},
      {"<=", at_most},
      {"gt", greater},
      {"greaterthan", greater},
      {">", greater},
      {"ge", at_least},
      {">=", at_least},
  };
  return all;
}

#undef HOLDS

// Counts like Python's range, up to the 100,000 numbers that Jinja's sandbox allows.
Value range(Renderer& run, const Arguments& given) {
  if (given.all.empty() || given.all.size() > 3) fail("range expected 1 to 3 arguments");
  const int64_t begin = given.all.size() > 1 ? whole(given.all[0]) : 0;
  const int64_t end = whole(given.all[given.all.size() > 1 ? 1 : 0]),
                step = given.all.size() > 2 ? whole(given.all[2]) : 1;
  if (step == 0) fail("range() arg 3 must not be zero");
  constexpr int64_t kLargest = int64_t{1} << 60;
  constexpr size_t kMost = 100'000;
  if (std::max({std::abs(begin / 2), std::abs(end / 2), std::abs(step / 2)}) > kLargest / 2)
    fail("range: a number is too large");
  std::vector<Value> numbers;
  for (int64_t i = begin; step > 0 ? i < end : i > end; i += step) {
    if (numbers.size() == kMost) fail("Range too big. The sandbox blocks ranges larger than ", kMost, ".");
    run.budget().step();
    numbers.emplace_back(i);
  }
  return run.heap().list(std::move(numbers), List::Kind::kRange);
}

// The pairs that dict() and namespace() get: of a mapping, of a sequence of pairs, of keyword arguments.
Dict pairs(Renderer& run, const Arguments& given) {
  Dict all;
  if (given.all.size() > 1) fail("dict expected at most 1 argument");
  if (!given.all.empty() && as_dict(given.all[0])) {
    all.items = as_dict(given.all[0])->items;
  } else if (!given.all.empty()) {
    for (const Value& pair : run.items(given.all[0])) {
      const auto two = run.items(pair);
      if (two.size() != 2) fail("dict: expected pairs");
      run.budget().step(all.items.size() / 4);
      all.set(two[0], two[1]);
    }
  }
  for (const auto& [name, value] : given.named) all.set(constant(name), value);
  return all;
}

Value make_namespace(Renderer& run, const Arguments& given) {
  Namespace space;
  for (auto& [key, value] : pairs(run, given).items) {
    const Text* name = as_text(key);
    if (!name || name->bytes().starts_with('_')) fail("names in a namespace are texts that do not begin with _");
    space.items.emplace_back(name->bytes(), std::move(value));
  }
  return run.heap().set_apart(std::move(space));
}

Value strftime_now(Renderer& run, const Arguments& given) {
  given.expect("strftime_now", {"format"}, 1);
  const Text* form = as_text(given.all.empty() ? given.named[0].second : given.all[0]);
  if (!form || form->size() > 1000) fail("strftime_now: expected a short text");
  const std::time_t now = run.now();
  std::tm local{};
  ::localtime_r(&now, &local);
  char text[8192];
  const std::string whole_form = form->bytes() + " ";  // an empty result would look like a failure
  const size_t size = std::strftime(text, sizeof text, whole_form.c_str(), &local);
  return run.string(std::string(text, size > 0 ? size - 1 : 0));
}

}  // namespace

Test find_test(std::string_view name) {
  const auto found = tests().find(name);
  return found == tests().end() ? nullptr : found->second;
}

void define_functions(Renderer& run) {
  const auto define = [&](const std::string& name, std::function<Value(Renderer&, const Arguments&)> call) {
    run.define(name, run.heap().function({name, std::move(call)}));
  };
  define("range", range);
  define("dict", [](Renderer& inner, const Arguments& given) { return inner.heap().dict(pairs(inner, given).items); });
  define("namespace", make_namespace);
  define("strftime_now", strftime_now);
  define("raise_exception", [](Renderer& inner, const Arguments& given) -> Value {
    given.expect("raise_exception", {"message"}, 1);
    std::string message = inner.text(*given.get(0, "message")).bytes();
    std::ranges::replace_if(message, [](char c) { return c >= 0 && c < ' '; }, ' ');
    fail(message);
  });
}

}  // namespace cortado::jinja
