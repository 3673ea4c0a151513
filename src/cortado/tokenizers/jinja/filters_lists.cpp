#include <algorithm>
#include <unordered_map>

#include "cortado/tokenizers/jinja/renderer.h"

namespace cortado::jinja {
namespace {

// Reads "a.b.0" of a value; with a fallback in place of what is missing.
Value attribute_of(Renderer& run, const Value& value, const Value& path, const Value* fallback) {
  Value at = value;
  if (!as_text(path)) {
    at = run.item(at, path);
  } else {
    const std::string dot = ".";
    for (const Text& part : split(*as_text(path), &dot, -1, false)) {
      const std::string& name = part.bytes();
      const bool number =
          !name.empty() && name.size() < 10 && name.find_first_not_of("0123456789") == std::string::npos;
      at = run.item(at, number ? Value(static_cast<int64_t>(std::stoll(name))) : constant(name));
    }
  }
  return is_undefined(at) && fallback ? *fallback : at;
}

// What a filter compares: an attribute, in lower case unless case matters.
Value key_of(Renderer& run, const Value& value, const Value* path, bool exact) {
  const Value key = path && !is_none(*path) ? attribute_of(run, value, *path, nullptr) : value;
  return exact || !as_text(key) ? key : run.string(lower(*as_text(key)));
}

bool flag_of(const Arguments& given, size_t place, std::string_view name) {
  const Value* value = given.get(place, name);
  return value && truth(*value);
}

void sort_values(Renderer& run, std::vector<std::pair<Value, Value>>& keyed, bool reversed) {
  run.budget().step(8 * keyed.size());
  std::ranges::stable_sort(keyed, [&](const auto& a, const auto& b) {
    const int order = compare(a.first, b.first, run.budget());
    return reversed ? order > 0 : order < 0;
  });
}

Value filter_length(Renderer&, const Value& value, const Arguments&) { return length(value); }

Value filter_list(Renderer& run, const Value& value, const Arguments&) { return run.heap().list(run.items(value)); }

Value filter_first(Renderer& run, const Value& value, const Arguments&) {
  const auto items = run.items(value);
  return items.empty() ? Undefined{"No first item, sequence was empty."} : items.front();
}

Value filter_last(Renderer& run, const Value& value, const Arguments&) {
  const List* list = as_list(value);
  if (list && list->kind == List::Kind::kGenerator) fail("'generator' object is not reversible");
  const auto items = run.items(value);
  return items.empty() ? Undefined{"No last item, sequence was empty."} : items.back();
}

Value filter_reverse(Renderer& run, const Value& value, const Arguments&) {
  auto items = run.items(value);
  std::ranges::reverse(items);
  if (!as_text(value)) return run.heap().list(std::move(items), List::Kind::kGenerator);
  Text out;
  for (const Value& item : items) out.append(*as_text(item));
  return run.string(std::move(out));
}

Value filter_join(Renderer& run, const Value& value, const Arguments& given) {
  given.expect("join", {"d", "attribute"}, 0);
  const Value* mark = given.get(0, "d");
  const Value* path = given.get(1, "attribute");
  std::vector<Value> parts;
  for (const Value& item : run.items(value)) {
    parts.push_back(run.string(run.text(path && !is_none(*path) ? attribute_of(run, item, *path, nullptr) : item)));
  }
  const Value between = run.string(mark ? run.text(*mark) : Text());
  return call_method(run, between, "join", {{run.heap().list(std::move(parts))}, {}});
}

Value filter_items(Renderer& run, const Value& value, const Arguments&) {
  if (is_undefined(value)) return run.heap().list({}, List::Kind::kGenerator);
  if (!as_dict(value)) fail("Can only get item pairs from a mapping.");
  const Value pairs = call_method(run, value, "items", {});
  return run.heap().list(run.items(pairs), List::Kind::kGenerator);
}

Value filter_dictsort(Renderer& run, const Value& value, const Arguments& given) {
  given.expect("dictsort", {"case_sensitive", "by", "reverse"}, 0);
  const Dict* dict = as_dict(value);
  if (!dict) fail("dictsort needs a mapping, got '", type_name(value), "'");
  const Value* by = given.get(1, "by");
  const bool values = by && as_text(*by) && as_text(*by)->bytes() == "value";
  std::vector<std::pair<Value, Value>> keyed;
  for (const auto& [key, item] : dict->items) {
    keyed.emplace_back(key_of(run, values ? item : key, nullptr, flag_of(given, 0, "case_sensitive")),
                       run.heap().list({key, item}, List::Kind::kTuple));
  }
  sort_values(run, keyed, flag_of(given, 2, "reverse"));
  std::vector<Value> sorted;
  for (auto& [key, pair] : keyed) sorted.push_back(std::move(pair));
  return run.heap().list(std::move(sorted));
}

Value filter_sort(Renderer& run, const Value& value, const Arguments& given) {
  given.expect("sort", {"reverse", "case_sensitive", "attribute"}, 0);
  std::vector<std::pair<Value, Value>> keyed;
  const Value* paths = given.get(2, "attribute");
  for (const Value& item : run.items(value)) {
    std::vector<Value> keys;
    if (paths && as_text(*paths)) {
      const std::string comma = ",";
      for (const Text& path : split(*as_text(*paths), &comma, -1, false)) {
        const Value one = constant(path.bytes());
        keys.push_back(key_of(run, item, &one, flag_of(given, 1, "case_sensitive")));
      }
    } else {
      keys.push_back(key_of(run, item, paths, flag_of(given, 1, "case_sensitive")));
    }
    keyed.emplace_back(keys.size() == 1 ? keys[0] : run.heap().list(std::move(keys)), item);
  }
  sort_values(run, keyed, flag_of(given, 0, "reverse"));
  std::vector<Value> sorted;
  for (auto& [key, item] : keyed) sorted.push_back(std::move(item));
  return run.heap().list(std::move(sorted));
}

Value filter_unique(Renderer& run, const Value& value, const Arguments& given) {
  given.expect("unique", {"case_sensitive", "attribute"}, 0);
  std::vector<Value> seen, kept;
  for (Value& item : run.items(value)) {
    Value key = key_of(run, item, given.get(1, "attribute"), flag_of(given, 0, "case_sensitive"));
    if (std::ranges::any_of(seen, [&](const Value& other) { return equal(other, key, run.budget()); })) continue;
    seen.push_back(std::move(key));
    kept.push_back(std::move(item));
  }
  return run.heap().list(std::move(kept), List::Kind::kGenerator);
}

template <bool greatest>
Value filter_extreme(Renderer& run, const Value& value, const Arguments& given) {
  given.expect("min", {"case_sensitive", "attribute"}, 0);
  const auto key = [&](const Value& item) {
    return key_of(run, item, given.get(1, "attribute"), flag_of(given, 0, "case_sensitive"));
  };
  const auto items = run.items(value);
  if (items.empty()) return Undefined{"No aggregated item, sequence was empty."};
  const Value* best = &items[0];
  for (const Value& item : items) {
    const int order = compare(key(item), key(*best), run.budget());
    if (greatest ? order > 0 : order < 0) best = &item;
  }
  return *best;
}

Value filter_sum(Renderer& run, const Value& value, const Arguments& given) {
  given.expect("sum", {"attribute", "start"}, 0);
  const Value* path = given.get(0, "attribute");
  const Value* start = given.get(1, "start");
  Value sum = start ? *start : Value(int64_t{0});
  for (const Value& item : run.items(value)) {
    sum = run.binary("+", sum, path && !is_none(*path) ? attribute_of(run, item, *path, nullptr) : item);
  }
  return sum;
}

// map and select take none and the like for an empty sequence.
std::vector<Value> items_if_true(Renderer& run, const Value& value) {
  return truth(value) ? run.items(value) : std::vector<Value>();
}

Value filter_map(Renderer& run, const Value& value, const Arguments& given) {
  std::vector<Value> out;
  const Value* path = given.all.empty() ? given.get(0, "attribute") : nullptr;
  if (path) {
    const Value* fallback = given.get(1, "default");
    for (const Value& item : items_if_true(run, value)) out.push_back(attribute_of(run, item, *path, fallback));
    return run.heap().list(std::move(out), List::Kind::kGenerator);
  }
  const Text* name = given.all.empty() ? nullptr : as_text(given.all[0]);
  if (!name) fail("map requires a filter argument");
  const Arguments rest{{given.all.begin() + 1, given.all.end()}, given.named};
  for (const Value& item : items_if_true(run, value)) out.push_back(run.filter(name->bytes(), item, rest));
  return run.heap().list(std::move(out), List::Kind::kGenerator);
}

// select, reject, selectattr, rejectattr: an attribute's or the value's own truth, or a test of it.
template <bool keeps, bool by_attribute>
Value filter_select(Renderer& run, const Value& value, const Arguments& given) {
  const size_t before = by_attribute ? 1 : 0;
  if (given.all.size() < before) fail("Missing parameter for attribute name");
  const Text* name = given.all.size() > before ? as_text(given.all[before]) : nullptr;
  if (!name && given.all.size() > before) fail("expected the name of a test");
  Arguments rest{{}, given.named};
  if (name) rest.all.assign(given.all.begin() + static_cast<std::ptrdiff_t>(before) + 1, given.all.end());
  std::vector<Value> out;
  for (Value& item : items_if_true(run, value)) {
    const Value tested = by_attribute ? attribute_of(run, item, given.all[0], nullptr) : item;
    const bool holds = name ? run.test(name->bytes(), tested, rest) : truth(tested);
    if (holds == keeps) out.push_back(std::move(item));
  }
  return run.heap().list(std::move(out), List::Kind::kGenerator);
}

Value filter_groupby(Renderer& run, const Value& value, const Arguments& given) {
  given.expect("groupby", {"attribute", "default", "case_sensitive"}, 1);
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : run.items(value)) {
    Value key = attribute_of(run, item, *given.get(0, "attribute"), given.get(1, "default"));
    if (as_text(key) && !flag_of(given, 2, "case_sensitive")) key = run.string(lower(*as_text(key)));
    keyed.emplace_back(std::move(key), item);
  }
  sort_values(run, keyed, false);
  std::vector<Value> groups;
  for (size_t begin = 0, end = 0; begin < keyed.size(); begin = end) {
    std::vector<Value> members;
    for (end = begin; end < keyed.size() && equal(keyed[begin].first, keyed[end].first, run.budget()); ++end) {
      members.push_back(keyed[end].second);
    }
    const Value* fallback = given.get(1, "default");
    const Value key = attribute_of(run, members[0], *given.get(0, "attribute"), fallback);
    groups.push_back(run.heap().list({key, run.heap().list(std::move(members))}, List::Kind::kTuple));
  }
  return run.heap().list(std::move(groups));
}

Value filter_batch(Renderer& run, const Value& value, const Arguments& given) {
  given.expect("batch", {"linecount", "fill_with"}, 1);
  const auto count = as_integer(*given.get(0, "linecount"));
  if (!count || *count < 1) fail("batch: expected a number from 1");
  std::vector<Value> rows, row;
  const auto end_row = [&] { rows.push_back(run.heap().list(std::exchange(row, {}))); };
  for (Value& item : run.items(value)) {
    if (static_cast<int64_t>(row.size()) == *count) end_row();
    row.push_back(std::move(item));
  }
  const Value* fill = given.get(1, "fill_with");
  if (!row.empty() && fill && !is_none(*fill)) {
    run.budget().take(static_cast<size_t>(std::min(*count, Budget::kBytes)) * sizeof(Value));
    row.resize(static_cast<size_t>(*count), *fill);
  }
  if (!row.empty()) end_row();
  return run.heap().list(std::move(rows), List::Kind::kGenerator);
}

}  // namespace

Filter find_list_filter(std::string_view name) {
  static const std::unordered_map<std::string_view, Filter> filters = {
      {"length", filter_length},
      {"count", filter_length},
      {"list", filter_list},
      {"first", filter_first},
      {"last", filter_last},
      {"reverse", filter_reverse},
      {"join", filter_join},
      {"items", filter_items},
      {"dictsort", filter_dictsort},
      {"sort", filter_sort},
      {"unique", filter_unique},
      {"min", filter_extreme<false>},
      {"max", filter_extreme<true>},
      {"sum", filter_sum},
      {"map", filter_map},
      {"select", filter_select<true, false>},
      {"reject", filter_select<false, false>},
      {"selectattr", filter_select<true, true>},
      {"rejectattr", filter_select<false, true>},
      {"groupby", filter_groupby},
      {"batch", filter_batch},
  };
  const auto found = filters.find(name);
  return found == filters.end() ? nullptr : found->second;
}

}  // namespace cortado::jinja
