#include <utf8proc.h>

#include <algorithm>
#include <unordered_map>

#include "cortado/base/utf8.h"
#include "cortado/tokenizers/jinja/renderer.h"

namespace cortado::jinja {
namespace {

using Method = Value (*)(Renderer& run, const Value& object, const Arguments& given);
using Methods = std::unordered_map<std::string_view, Method>;

const Text& text_argument(const Arguments& given, size_t place, std::string_view name) {
  const Value* value = given.get(place, name);
  const Text* text = value ? as_text(*value) : nullptr;
  if (!text) fail("expected a string, got '", value ? type_name(*value) : "nothing", "'");
  return *text;
}

int64_t whole_argument(const Arguments& given, size_t place, std::string_view name, int64_t fallback) {
  const Value* value = given.get(place, name);
  if (!value) return fallback;
  const auto integer = as_integer(*value);
  if (!integer) fail("'", type_name(*value), "' object cannot be interpreted as an integer");
  return *integer;
}

Value stripped_text(Renderer& run, const Value& object, const Arguments& given, bool left, bool right) {
  given.expect("strip", {"chars"}, 0);
  const Value* chars = given.get(0, "chars");
  const bool plain = !chars || is_none(*chars);
  return run.string(strip(*as_text(object), left, right, plain ? nullptr : &text_argument(given, 0, "chars").bytes()));
}

Value split_text(Renderer& run, const Value& object, const Arguments& given, bool from_right) {
  given.expect("split", {"sep", "maxsplit"}, 0);
  const Value* separator = given.get(0, "sep");
  const bool plain = !separator || is_none(*separator);
  const std::string* mark = plain ? nullptr : &text_argument(given, 0, "sep").bytes();
  if (mark && mark->empty()) fail("empty separator");
  std::vector<Value> parts;
  run.budget().step(as_text(object)->size() / 16);
  for (Text& part : split(*as_text(object), mark, whole_argument(given, 1, "maxsplit", -1), from_right)) {
    parts.push_back(run.string(std::move(part)));
  }
  return run.heap().list(std::move(parts));
}

// startswith and endswith take one text or a tuple of them.
Value has_affix(const Value& object, const Arguments& given, bool at_start) {
  given.expect("startswith", {"prefix"}, 1);
  const std::string& text = as_text(object)->bytes();
  const auto fits = [&](const Value& affix) {
    const Text* part = as_text(affix);
    if (!part) fail("startswith first arg must be str or a tuple of str, not ", type_name(affix));
    return at_start ? text.starts_with(part->bytes()) : text.ends_with(part->bytes());
  };
  const List* list = as_list(given.all[0]);
  if (list && list->kind == List::Kind::kTuple) return std::ranges::any_of(list->items, fits);
  return fits(given.all[0]);
}

// The place of a part in characters; -1 if it is not there.
int64_t place_of(const Value& object, const Arguments& given, bool from_right) {
  given.expect("find", {"sub"}, 1);
  const std::string& text = as_text(object)->bytes();
  const std::string& part = text_argument(given, 0, "sub").bytes();
  const size_t at = from_right ? text.rfind(part) : text.find(part);
  return at == std::string::npos ? -1 : character_count(std::string_view(text).substr(0, at));
}

template <typename Holds>
bool all_characters(const Value& object, const Holds& holds) {
  const std::string_view text = as_text(object)->bytes();
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = utf8_char(text.substr(at));
    if (c.length == 0 || !holds(c.code)) return false;
    at += static_cast<size_t>(c.length);
  }
  return !text.empty();
}

utf8proc_category_t category_of(uint32_t code) { return utf8proc_category(static_cast<utf8proc_int32_t>(code)); }
bool is_letter(uint32_t code) {
  const auto category = category_of(code);
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}
bool is_decimal(uint32_t code) { return category_of(code) == UTF8PROC_CATEGORY_ND; }

// Whether the text has cased characters, all of the one case.
bool has_one_case(const Value& object, utf8proc_category_t wanted, utf8proc_category_t other) {
  bool some = false;
  const bool none_else = all_characters(object, [&](uint32_t code) {
    some = some || category_of(code) == wanted;
    return category_of(code) != other && category_of(code) != UTF8PROC_CATEGORY_LT;
  });
  return some && none_else;
}

// Pads to a width: 'l', 'r' or 'c' says where the text stands.
Value padded(Renderer& run, const Value& object, const Arguments& given, char side) {
  given.expect("center", {"width", "fillchar"}, 1);
  const Text& text = *as_text(object);
  const std::string fill = given.get(1, "fillchar") ? text_argument(given, 1, "fillchar").bytes() : " ";
  const int64_t width = whole_argument(given, 0, "width", 0), missing = width - character_count(text.bytes());
  if (missing <= 0) return object;
  Budget::Growth growth(run.budget());
  growth.add(static_cast<size_t>(missing) * fill.size());
  const int64_t left = side == 'l' ? 0 : side == 'r' ? missing : missing / 2 + (missing & width & 1);
  Text out;
  for (int64_t i = 0; i < left; ++i) out.write(fill);
  out.append(text);
  for (int64_t i = left; i < missing; ++i) out.write(fill);
  return run.string(std::move(out));
}

Value partitioned(Renderer& run, const Value& object, const Arguments& given, bool from_right) {
  given.expect("partition", {"sep"}, 1);
  const Text& text = *as_text(object);
  const std::string& mark = text_argument(given, 0, "sep").bytes();
  if (mark.empty()) fail("empty separator");
  const size_t at = from_right ? text.bytes().rfind(mark) : text.bytes().find(mark);
  std::vector<Value> parts(3, constant(""));
  if (at == std::string::npos) {
    parts[from_right ? 2 : 0] = object;
  } else {
    parts = {run.string(text.part(0, at)), run.string(text.part(at, at + mark.size())),
             run.string(text.part(at + mark.size(), text.size()))};
  }
  return run.heap().list(std::move(parts), List::Kind::kTuple);
}

Value joined_by(Renderer& run, const Value& object, const Arguments& given) {
  given.expect("join", {"iterable"}, 1);
  Text out;
  Budget::Growth growth(run.budget());
  bool first = true;
  for (const Value& value : run.items(given.all[0])) {
    const Text* part = as_text(value);
    if (!part) fail("sequence item: expected str instance, ", type_name(value), " found");
    growth.add(part->size() + as_text(object)->size());
    if (!std::exchange(first, false)) out.append(*as_text(object));
    out.append(*part);
  }
  return run.string(std::move(out));
}

Value replaced(Renderer& run, const Value& object, const Arguments& given) {
  given.expect("replace", {"old", "new", "count"}, 2);
  const Text& text = *as_text(object);
  const Text& old = text_argument(given, 0, "old");
  const Text& with = text_argument(given, 1, "new");
  Budget::Growth growth(run.budget());  // the result is counted before it is made
  if (with.size() > old.size()) {
    size_t found = old.empty() ? text.size() + 1 : 0;
    for (size_t at = text.bytes().find(old.bytes()); !old.empty() && at != std::string::npos;
         at = text.bytes().find(old.bytes(), at + old.size())) {
      ++found;
    }
    growth.add(found * with.size());
  }
  return run.string(replace(text, old.bytes(), with, whole_argument(given, 2, "count", -1)));
}

Value without_affix(Renderer& run, const Value& object, const Arguments& given, bool at_start) {
  given.expect("removeprefix", {"prefix"}, 1);
  const Text& text = *as_text(object);
  const std::string& affix = text_argument(given, 0, "prefix").bytes();
  const bool there = at_start ? text.bytes().starts_with(affix) : text.bytes().ends_with(affix);
  if (!there) return object;
  return run.string(at_start ? text.part(affix.size(), text.size()) : text.part(0, text.size() - affix.size()));
}

Value counted(Renderer& run, const Value& object, const Arguments& given) {
  given.expect("count", {"sub"}, 1);
  if (const List* list = as_list(object)) {
    return static_cast<int64_t>(std::ranges::count_if(
        list->items, [&](const Value& value) { return equal(value, given.all[0], run.budget()); }));
  }
  const std::string& text = as_text(object)->bytes();
  const std::string& part = text_argument(given, 0, "sub").bytes();
  if (part.empty()) return character_count(text) + 1;
  int64_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++count;
  return count;
}

#define METHOD(expression)                                                       \
  [](Renderer& run, const Value& object, const Arguments& given) -> Value {      \
    static_cast<void>(run), static_cast<void>(object), static_cast<void>(given); \
    return expression;                                                           \
  }
#define CHANGE(function) METHOD((given.expect(#function, {}, 0), run.string(function(*as_text(object)))))

const Methods& text_methods() {
  static const Methods methods = {
      {"strip", METHOD(stripped_text(run, object, given, true, true))},
      {"lstrip", METHOD(stripped_text(run, object, given, true, false))},
      {"rstrip", METHOD(stripped_text(run, object, given, false, true))},
      {"split", METHOD(split_text(run, object, given, false))},
      {"rsplit", METHOD(split_text(run, object, given, true))},
      {"splitlines",
       [](Renderer& run, const Value& object, const Arguments& given) -> Value {
         given.expect("splitlines", {"keepends"}, 0);
         const Value* keeps = given.get(0, "keepends");
         std::vector<Value> lines;
         for (Text& line : split_lines(*as_text(object), keeps && truth(*keeps)))
           lines.push_back(run.string(std::move(line)));
         return run.heap().list(std::move(lines));
       }},
      {"startswith", METHOD(has_affix(object, given, true))},
      {"endswith", METHOD(has_affix(object, given, false))},
      {"upper", CHANGE(upper)},
      {"lower", CHANGE(lower)},
      {"casefold", CHANGE(lower)},
      {"title", CHANGE(title)},
      {"capitalize", CHANGE(capitalize)},
      {"replace", replaced},
      {"find", METHOD(place_of(object, given, false))},
      {"rfind", METHOD(place_of(object, given, true))},
      {"index",
       [](Renderer&, const Value& object, const Arguments& given) -> Value {
         const int64_t place = place_of(object, given, false);
         if (place < 0) fail("substring not found");
         return place;
       }},
      {"count", counted},
      {"join", joined_by},
      {"format", METHOD(run.string(brace_format(run, *as_text(object), given)))},
      {"isdigit", METHOD(all_characters(object, is_decimal))},
      {"isdecimal", METHOD(all_characters(object, is_decimal))},
      {"isnumeric", METHOD(all_characters(object, is_decimal))},
      {"isalpha", METHOD(all_characters(object, is_letter))},
      {"isalnum", METHOD(all_characters(object, [](uint32_t code) { return is_letter(code) || is_decimal(code); }))},
      {"isspace", METHOD(all_characters(object, is_space))},
      {"isupper", METHOD(has_one_case(object, UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_LL))},
      {"islower", METHOD(has_one_case(object, UTF8PROC_CATEGORY_LL, UTF8PROC_CATEGORY_LU))},
      {"removeprefix", METHOD(without_affix(run, object, given, true))},
      {"removesuffix", METHOD(without_affix(run, object, given, false))},
      {"partition", METHOD(partitioned(run, object, given, false))},
      {"rpartition", METHOD(partitioned(run, object, given, true))},
      {"ljust", METHOD(padded(run, object, given, 'l'))},
      {"rjust", METHOD(padded(run, object, given, 'r'))},
      {"center", METHOD(padded(run, object, given, 'c'))},
  };
  return methods;
}

Value pairs_of(Renderer& run, const Dict& dict) {
  std::vector<Value> pairs;
  for (const auto& [key, value] : dict.items) pairs.push_back(run.heap().list({key, value}, List::Kind::kTuple));
  return run.heap().list(std::move(pairs), List::Kind::kView);
}

Value column_of(Renderer& run, const Dict& dict, bool keys) {
  std::vector<Value> column;
  for (const auto& [key, value] : dict.items) column.push_back(keys ? key : value);
  return run.heap().list(std::move(column), List::Kind::kView);
}

const Methods& dict_methods() {
  static const Methods methods = {
      {"get",
       [](Renderer& run, const Value& object, const Arguments& given) -> Value {
         given.expect("get", {"key", "default"}, 1);
         run.budget().step(as_dict(object)->items.size() / 4);
         const Value* value = as_dict(object)->find(given.all.at(0));
         const Value* fallback = given.get(1, "default");
         return value ? *value : fallback ? *fallback : Value(None{});
       }},
      {"items", METHOD((given.expect("items", {}, 0), pairs_of(run, *as_dict(object))))},
      {"keys", METHOD((given.expect("keys", {}, 0), column_of(run, *as_dict(object), true)))},
      {"values", METHOD((given.expect("values", {}, 0), column_of(run, *as_dict(object), false)))},
      {"copy", METHOD(object)},
  };
  return methods;
}

const Methods& list_methods() {
  static const Methods methods = {
      {"index",
       [](Renderer& run, const Value& object, const Arguments& given) -> Value {
         given.expect("index", {"value"}, 1);
         const auto& items = as_list(object)->items;
         const auto found =
             std::ranges::find_if(items, [&](const Value& value) { return equal(value, given.all[0], run.budget()); });
         if (found == items.end()) fail("the value is not in the list");
         return static_cast<int64_t>(found - items.begin());
       }},
      {"count", counted},
      {"copy", METHOD(object)},
  };
  return methods;
}

const Methods& loop_methods() {
  static const Methods methods = {
      {"cycle",
       [](Renderer&, const Value& object, const Arguments& given) -> Value {
         if (given.all.empty()) fail("no items for cycling given");
         return given.all[(*as<Loop*>(object))->at % given.all.size()];
       }},
      {"changed",
       [](Renderer& run, const Value& object, const Arguments& given) -> Value {
         auto& last = (*as<Loop*>(object))->changed;
         bool same = last && last->size() == given.all.size();
         for (size_t i = 0; same && i < given.all.size(); ++i) same = equal((*last)[i], given.all[i], run.budget());
         last = given.all;
         return !same;
       }},
  };
  return methods;
}

#undef CHANGE
#undef METHOD

const Methods* methods_of(const Value& object) {
  if (as_text(object)) return &text_methods();
  if (as_dict(object)) return &dict_methods();
  if (const List* list = as_list(object)) return list->kind <= List::Kind::kTuple ? &list_methods() : nullptr;
  return as<Loop*>(object) ? &loop_methods() : nullptr;
}

}  // namespace

bool has_method(const Value& object, std::string_view name) {
  const Methods* methods = methods_of(object);
  return methods && methods->contains(name);
}

Value call_method(Renderer& run, const Value& object, const std::string& name, const Arguments& given) {
  const Budget::Level level(run.budget());
  const Text* text = as_text(object);
  run.budget().step(1 + (text ? text->size() / 16 : 0));
  return methods_of(object)->at(name)(run, object, given);
}

}  // namespace cortado::jinja
