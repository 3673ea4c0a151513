#include "cortado/tokenizers/jinja/value.h"

#include <algorithm>
#include <cmath>

namespace cortado::jinja {
namespace {

// A text with the budget that it was taken from.
struct CountedText {
  CountedText(Text given, Budget& taken_from) : text(std::move(given)), budget(taken_from) { budget.take(bytes()); }
  ~CountedText() { budget.give_back(bytes()); }
  CountedText(const CountedText&) = delete;
  CountedText& operator=(const CountedText&) = delete;
  size_t bytes() const { return sizeof(*this) + text.size() + text.typed().size() * sizeof(Typed); }

  Text text;
  Budget& budget;
};

// A role that servers know is the server's word, not the client's: templates build marks of it ('<|' + role + '|>').
bool is_known_role(const std::string& key, const Json& value) {
  static const std::vector<std::string> kRoles = {"system", "developer", "user", "assistant", "tool", "function"};
  return key == "role" && value.is_string() &&
         std::ranges::find(kRoles, value.get_ref<const std::string&>()) != kRoles.end();
}

bool same_items(const std::vector<Value>& a, const std::vector<Value>& b, Budget& budget) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!equal(a[i], b[i], budget)) return false;
  }
  return true;
}

bool same_items(const Dict& a, const Dict& b, Budget& budget) {
  if (a.items.size() != b.items.size()) return false;
  for (const auto& [key, value] : a.items) {
    budget.step(b.items.size());
    const Value* other = b.find(key);
    if (!other || !equal(value, *other, budget)) return false;
  }
  return true;
}

// Whether two keys are the same. Keys are scalars.
bool same_key(const Value& a, const Value& b) {
  const Text* left = as_text(a);
  const Text* right = as_text(b);
  if (left && right) return left->bytes() == right->bytes();
  const auto x = as_number(a), y = as_number(b);
  return x && y ? *x == *y : is_none(a) && is_none(b);
}

}  // namespace

const Value* Dict::find(const Value& key) const {
  const auto found = std::ranges::find_if(items, [&](const auto& item) { return same_key(item.first, key); });
  return found == items.end() ? nullptr : &found->second;
}

const Value* Dict::find(std::string_view key) const {
  const auto found = std::ranges::find_if(items, [&](const auto& item) {
    const Text* text = as_text(item.first);
    return text && text->bytes() == key;
  });
  return found == items.end() ? nullptr : &found->second;
}

void Dict::set(const Value& key, const Value& value) {
  const bool plain = as_text(key) || as_number(key) || is_none(key);
  if (!plain) fail("unhashable type: '", type_name(key), "'");
  const auto found = std::ranges::find_if(items, [&](const auto& item) { return same_key(item.first, key); });
  if (found == items.end()) {
    items.emplace_back(key, value);
  } else {
    found->second = value;
  }
}

Value* Namespace::find(std::string_view name) {
  const auto found = std::ranges::find_if(items, [&](const auto& item) { return item.first == name; });
  return found == items.end() ? nullptr : &found->second;
}

const Value* Arguments::get(size_t place, std::string_view name) const {
  if (place < all.size()) return &all[place];
  const auto found = std::ranges::find_if(named, [&](const auto& item) { return item.first == name; });
  return found == named.end() ? nullptr : &found->second;
}

void Arguments::expect(const std::string& function, const std::vector<std::string_view>& names, size_t required) const {
  if (all.size() > names.size()) fail(function, "() takes at most ", names.size(), " arguments, got ", all.size());
  for (const auto& [name, value] : named) {
    const auto place = static_cast<size_t>(std::ranges::find(names, std::string_view(name)) - names.begin());
    if (place == names.size()) fail(function, "() got an unexpected keyword argument '", name, "'");
    if (place < all.size()) fail(function, "() got multiple values for argument '", name, "'");
  }
  for (size_t i = 0; i < required; ++i) {
    if (!get(i, names[i])) fail(function, "() missing the argument '", names[i], "'");
  }
}

Value Heap::string(Text text) {
  const auto counted = std::make_shared<CountedText>(std::move(text), budget_);
  return String(counted, &counted->text);
}

Value Heap::list(std::vector<Value> items, List::Kind kind) {
  budget_.take(sizeof(List) + items.size() * sizeof(Value));
  lists_.push_back({kind, std::move(items)});
  return &lists_.back();
}

Value Heap::dict(std::vector<std::pair<Value, Value>> items) {
  budget_.take(sizeof(Dict) + 2 * items.size() * sizeof(Value));
  dicts_.push_back({std::move(items)});
  return &std::as_const(dicts_.back());
}

Value Heap::set_apart(Namespace space) {
  budget_.take(sizeof(Namespace) + 2 * space.items.size() * sizeof(Value));
  spaces_.push_back(std::move(space));
  return &spaces_.back();
}

Value Heap::function(Function function) {
  budget_.take(sizeof(Function));
  functions_.push_back(std::move(function));
  return &std::as_const(functions_.back());
}

Loop* Heap::loop(std::vector<Value> items) {
  budget_.take(sizeof(Loop) + items.size() * sizeof(Value));
  loops_.push_back({std::move(items)});
  return &loops_.back();
}

Value Heap::from_json(const Json& json, std::optional<int32_t> source) {
  const auto text = [&](const std::string& bytes) {
    return string(source ? Text::typed(bytes, *source) : Text(bytes));
  };
  const Budget::Level level(budget_);
  budget_.step();
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_float() || (json.is_number_unsigned() && json.get<uint64_t>() > INT64_MAX))
    return json.get<double>();
  if (json.is_number_integer()) return json.get<int64_t>();
  if (json.is_string()) return text(json.get_ref<const std::string&>());
  if (json.is_array()) {
    std::vector<Value> items;
    for (const Json& item : json) items.push_back(from_json(item, source));
    return list(std::move(items));
  }
  if (!json.is_object()) return None{};
  std::vector<std::pair<Value, Value>> items;
  for (const auto& [key, value] : json.items()) {
    items.emplace_back(text(key), from_json(value, is_known_role(key, value) ? std::nullopt : source));
  }
  return dict(std::move(items));
}

std::optional<int64_t> as_integer(const Value& value) {
  if (const auto* integer = as<int64_t>(value)) return *integer;
  if (const auto* flag = as<bool>(value)) return *flag ? 1 : 0;
  return {};
}

std::optional<double> as_number(const Value& value) {
  if (const auto* number = as<double>(value)) return *number;
  const auto integer = as_integer(value);
  return integer ? std::optional(static_cast<double>(*integer)) : std::nullopt;
}

Value constant(std::string text) { return std::make_shared<const Text>(std::move(text)); }

std::string type_name(const Value& value) {
  if (const List* list = as_list(value)) {
    static constexpr const char* kNames[] = {"list", "tuple", "range", "dict_view", "generator"};
    return kNames[static_cast<int>(list->kind)];
  }
  static constexpr const char* kNames[] = {"Undefined", "NoneType", "bool",      "int",      "float", "str",
                                           "list",      "dict",     "Namespace", "function", "loop"};
  return kNames[value.index()];
}

bool truth(const Value& value) {
  if (const auto* flag = as<bool>(value)) return *flag;
  if (const auto number = as_number(value)) return *number != 0;
  if (const Text* text = as_text(value)) return !text->empty();
  if (const List* list = as_list(value)) return list->kind == List::Kind::kGenerator || !list->items.empty();
  if (const Dict* dict = as_dict(value)) return !dict->items.empty();
  return !is_undefined(value) && !is_none(value);
}

bool equal(const Value& a, const Value& b, Budget& budget) {
  const Budget::Level level(budget);
  budget.step();
  const Text* left = as_text(a);
  const Text* right = as_text(b);
  if (left && right) return left->bytes() == right->bytes();
  const auto i = as_integer(a), j = as_integer(b);
  if (i && j) return *i == *j;
  const auto x = as_number(a), y = as_number(b);
  if (x && y) return *x == *y;
  if (const List* list = as_list(a); list && as_list(b)) {
    const List* other = as_list(b);
    const bool same = list->kind == other->kind && list->kind != List::Kind::kGenerator;
    return list == other || (same && same_items(list->items, other->items, budget));
  }
  if (as_dict(a) && as_dict(b)) return same_items(*as_dict(a), *as_dict(b), budget);
  if (const auto* space = as<Namespace*>(a)) return as<Namespace*>(b) && *space == *as<Namespace*>(b);
  if (const auto* function = as<const Function*>(a))
    return as<const Function*>(b) && *function == *as<const Function*>(b);
  return (is_none(a) && is_none(b)) || (is_undefined(a) && is_undefined(b));
}

int compare(const Value& a, const Value& b, Budget& budget) {
  const Budget::Level level(budget);
  budget.step();
  if (as_text(a) && as_text(b)) return as_text(a)->bytes().compare(as_text(b)->bytes());
  const auto x = as_number(a), y = as_number(b);
  if (x && y) return *x < *y ? -1 : *x > *y ? 1 : 0;
  const List* left = as_list(a);
  const List* right = as_list(b);
  if (left && right && left->kind == right->kind && left->kind <= List::Kind::kTuple) {
    for (size_t i = 0; i < std::min(left->items.size(), right->items.size()); ++i) {
      if (!equal(left->items[i], right->items[i], budget)) return compare(left->items[i], right->items[i], budget);
    }
    return left->items.size() < right->items.size() ? -1 : left->items.size() > right->items.size() ? 1 : 0;
  }
  if (const auto* missing = as<Undefined>(a)) fail(missing->why);
  if (const auto* missing = as<Undefined>(b)) fail(missing->why);
  fail("'", type_name(a), "' and '", type_name(b), "' have no order");
}

bool contains(const Value& container, const Value& item, Budget& budget) {
  if (const Text* text = as_text(container)) {
    const Text* part = as_text(item);
    if (!part) fail("'in <string>' requires string as left operand, not ", type_name(item));
    budget.step(text->size() / 64);
    return text->bytes().find(part->bytes()) != std::string::npos;
  }
  if (const Dict* dict = as_dict(container)) {
    budget.step(dict->items.size() / 4);
    if (as_list(item) || as_dict(item)) fail("unhashable type: '", type_name(item), "'");
    return dict->find(item) != nullptr;
  }
  List* list = as_list(container);
  if (!list) {
    if (is_undefined(container)) return false;
    fail("argument of type '", type_name(container), "' is not iterable");
  }
  if (list->kind == List::Kind::kGenerator && std::exchange(list->read, true)) return false;
  return std::ranges::any_of(list->items, [&](const Value& each) { return equal(each, item, budget); });
}

std::vector<Value> iterate(const Value& value, Heap& heap, Budget& budget) {
  std::vector<Value> all;
  if (List* list = as_list(value)) {
    budget.step(list->items.size());
    if (list->kind != List::Kind::kGenerator) return list->items;
    return std::exchange(list->read, true) ? all : list->items;
  }
  if (const Dict* dict = as_dict(value)) {
    budget.step(dict->items.size());
    for (const auto& item : dict->items) all.push_back(item.first);
    return all;
  }
  if (const Text* text = as_text(value)) {
    const auto starts = character_starts(text->bytes());
    budget.step(starts.size());
    for (size_t i = 0; i + 1 < starts.size(); ++i) all.push_back(heap.string(text->part(starts[i], starts[i + 1])));
    return all;
  }
  if (!is_undefined(value)) fail("'", type_name(value), "' object is not iterable");
  return all;
}

int64_t length(const Value& value) {
  if (const Text* text = as_text(value)) return character_count(text->bytes());
  if (const Dict* dict = as_dict(value)) return static_cast<int64_t>(dict->items.size());
  const List* list = as_list(value);
  if (list && list->kind != List::Kind::kGenerator) return static_cast<int64_t>(list->items.size());
  if (is_undefined(value)) return 0;
  fail("object of type '", type_name(value), "' has no len()");
}

}  // namespace cortado::jinja
