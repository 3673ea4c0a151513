#include <algorithm>

#include "cortado/tokenizers/jinja/renderer.h"

namespace cortado::jinja {
namespace {

Value missing_attribute(const Value& object, const std::string& name) {
  const std::string owner = is_none(object) ? "None" : type_name(object) + " object";
  return Undefined{"'" + owner + "' has no attribute '" + name + "'"};
}

Value loop_attribute(const Loop& loop, const std::string& name) {
  const auto at = static_cast<int64_t>(loop.at), count = static_cast<int64_t>(loop.items.size());
  if (name == "index") return at + 1;
  if (name == "index0") return at;
  if (name == "revindex") return count - at;
  if (name == "revindex0") return count - at - 1;
  if (name == "first") return at == 0;
  if (name == "last") return at + 1 == count;
  if (name == "length") return count;
  if (name == "depth") return loop.depth;
  if (name == "depth0") return loop.depth - 1;
  if (name == "previtem") return at > 0 ? loop.items[loop.at - 1] : Undefined{"there is no previous item"};
  if (name == "nextitem") return at + 1 < count ? loop.items[loop.at + 1] : Undefined{"there is no next item"};
  return Undefined{"'loop' has no attribute '" + name + "'"};
}

// Python's sandbox hides what changes a list or a dict.
bool is_hidden(const Value& object, std::string_view name) {
  static constexpr std::string_view kDict[] = {"clear", "pop", "popitem", "setdefault", "update"};
  static constexpr std::string_view kList[] = {"append", "clear",  "extend",  "insert",
                                               "pop",    "remove", "reverse", "sort"};
  if (as_dict(object)) return std::ranges::find(kDict, name) != std::end(kDict);
  const List* list = as_list(object);
  return list && list->kind == List::Kind::kList && std::ranges::find(kList, name) != std::end(kList);
}

Value bound_method(Renderer& run, const Value& object, const std::string& name) {
  return run.heap().function({name, [object, name](Renderer& inner, const Arguments& arguments) {
                                return call_method(inner, object, name, arguments);
                              }});
}

// A slice's places, as Python counts them.
struct SliceRange {
  int64_t begin, end, step;
};

SliceRange slice_range(const Value* begin, const Value* end, const Value* step, int64_t size) {
  const auto whole = [](const Value* value) -> std::optional<int64_t> {
    if (!value || is_none(*value)) return {};
    const auto integer = as_integer(*value);
    if (!integer) {
      if (const auto* missing = as<Undefined>(*value)) fail(missing->why);
      fail("slice indices must be integers");
    }
    return std::clamp<int64_t>(*integer, -(int64_t{1} << 40), int64_t{1} << 40);
  };
  const int64_t by = whole(step).value_or(1);
  if (by == 0) fail("slice step cannot be zero");
  const int64_t low = by > 0 ? 0 : -1, high = by > 0 ? size : size - 1;
  const auto place = [&](std::optional<int64_t> given, int64_t otherwise) {
    if (!given) return otherwise;
    return std::clamp(*given < 0 ? *given + size : *given, low, high);
  };
  return {place(whole(begin), by > 0 ? low : high), place(whole(end), by > 0 ? high : low), by};
}

}  // namespace

Value Renderer::attribute(const Value& object, const std::string& name) {
  if (const auto* missing = as<Undefined>(object)) fail(missing->why);
  if (const auto* loop = as<Loop*>(object)) {
    return has_method(object, name) ? bound_method(*this, object, name) : loop_attribute(**loop, name);
  }
  if (const auto* space = as<Namespace*>(object)) {
    const Value* value = (*space)->find(name);
    return value ? *value : missing_attribute(object, name);
  }
  if (has_method(object, name)) return bound_method(*this, object, name);
  if (is_hidden(object, name)) {
    return Undefined{"access to attribute '" + name + "' of '" + type_name(object) + "' object is unsafe."};
  }
  if (const Dict* dict = as_dict(object)) {
    budget_.step(dict->items.size() / 4);
    if (const Value* value = dict->find(std::string_view(name))) return *value;
  }
  return missing_attribute(object, name);
}

Value Renderer::item(const Value& object, const Value& key) {
  if (const auto* missing = as<Undefined>(object)) fail(missing->why);
  if (const Dict* dict = as_dict(object)) {
    budget_.step(dict->items.size() / 4);
    if (const Value* value = dict->find(key)) return *value;
  }
  const List* list = as_list(object);
  const Text* text = as_text(object);
  const auto place = as_integer(key);
  if (place && list && list->kind <= List::Kind::kRange) {
    const auto size = static_cast<int64_t>(list->items.size());
    const int64_t at = *place < 0 ? *place + size : *place;
    if (at >= 0 && at < size) return list->items[static_cast<size_t>(at)];
  }
  if (place && text) {
    const auto starts = character_starts(text->bytes());
    budget_.step(starts.size() / 16);
    const auto size = static_cast<int64_t>(starts.size()) - 1;
    const int64_t at = *place < 0 ? *place + size : *place;
    if (at >= 0 && at < size) {
      return string(text->part(starts[static_cast<size_t>(at)], starts[static_cast<size_t>(at) + 1]));
    }
  }
  const Text* name = as_text(key);
  if (name && has_method(object, name->bytes())) return bound_method(*this, object, name->bytes());
  if (const auto* integer = as<int64_t>(key)) {
    return Undefined{type_name(object) + " object has no element " + std::to_string(*integer)};
  }
  return missing_attribute(object, name ? name->bytes() : type_name(key));
}

Value Renderer::slice(const Node& node, Scope& scope) {
  const Value object = evaluate(node.parts[0], scope);
  std::vector<Value> given(3, None{});
  for (size_t i = 0; i < 3; ++i) {
    if (node.parts[i + 1]) given[i] = evaluate(node.parts[i + 1], scope);
  }
  if (const auto* missing = as<Undefined>(object)) fail(missing->why);
  const auto range = [&](int64_t size) { return slice_range(&given[0], &given[1], &given[2], size); };
  if (const Text* text = as_text(object)) {
    const auto starts = character_starts(text->bytes());
    budget_.step(starts.size() / 16);
    const auto [begin, end, step] = range(static_cast<int64_t>(starts.size()) - 1);
    if (step == 1) {
      return string(text->part(starts[static_cast<size_t>(begin)], starts[static_cast<size_t>(std::max(begin, end))]));
    }
    Text out;
    for (int64_t i = begin; step > 0 ? i < end : i > end; i += step) {
      budget_.step();
      out.append(text->part(starts[static_cast<size_t>(i)], starts[static_cast<size_t>(i) + 1]));
    }
    return string(std::move(out));
  }
  const List* list = as_list(object);
  if (!list || list->kind > List::Kind::kRange) return missing_attribute(object, "slice");
  const auto [begin, end, step] = range(static_cast<int64_t>(list->items.size()));
  std::vector<Value> out;
  for (int64_t i = begin; step > 0 ? i < end : i > end; i += step) {
    budget_.step();
    out.push_back(list->items[static_cast<size_t>(i)]);
  }
  return heap_.list(std::move(out), list->kind);
}

}  // namespace cortado::jinja
