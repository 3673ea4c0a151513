#include "cortado/serve/no_repeats.h"

#include <algorithm>
#include <utility>

#include "cortado/serve/schema.h"

namespace cortado {

namespace {

constexpr int kDeepestValue = 64;

// Adds a value. Returns false if it is there already.
bool add(std::vector<Json>& found, const std::string& text) {
  Json value = Json::parse(text, nullptr, false);
  if (std::find(found.begin(), found.end(), value) != found.end()) return false;
  found.push_back(std::move(value));
  return true;
}

}  // namespace

NoRepeats::NoRepeats(std::shared_ptr<const Json> schema) : schema_(std::move(schema)) {}

void NoRepeats::collect(const Json& schema, Schemas& found, int depth) const {
  if (!schema.is_object() || depth > kDeepestValue) return;
  if (schema.contains("$ref")) {
    const Json* meant = find_reference(*schema_, schema.at("$ref"));
    if (meant) collect(*meant, found, depth + 1);
  } else if (schema.contains("anyOf")) {
    for (const Json& one : schema.at("anyOf")) collect(one, found, depth + 1);
  } else {
    found.push_back(&schema);
  }
}

NoRepeats::Schemas NoRepeats::meant_by(const Schemas& schemas) const {
  Schemas found;
  for (const Json* schema : schemas) collect(*schema, found, 0);
  return found;
}

// Returns the schemas of the value that comes next in the frame.
NoRepeats::Schemas NoRepeats::inner(const Frame& frame) const {
  Schemas found;
  const auto add_one = [&](const Json& schema, const char* key) {
    if (schema.contains(key)) found.push_back(&schema.at(key));
  };
  for (const Json* schema : frame.schemas) {
    if (!frame.object) {
      const Json* first = schema->contains("prefixItems") ? &schema->at("prefixItems") : nullptr;
      if (first && frame.index < first->size()) {
        found.push_back(&first->at(frame.index));
      } else {
        add_one(*schema, "items");
      }
      continue;
    }
    if (schema->contains("properties") && schema->at("properties").contains(frame.key)) {
      found.push_back(&schema->at("properties").at(frame.key));
      continue;
    }
    add_one(*schema, "additionalProperties");
    if (!schema->contains("patternProperties")) continue;
    for (const auto& [pattern, its] : schema->at("patternProperties").items()) found.push_back(&its);
  }
  return meant_by(found);
}

void NoRepeats::open(bool object) {
  Frame frame{.object = object, .schemas = frames_.empty() ? meant_by({schema_.get()}) : inner(frames_.back())};
  frame.distinct = object || std::any_of(frame.schemas.begin(), frame.schemas.end(),
                                         [](const Json* schema) { return schema->contains("uniqueItems"); });
  frame.in_key = object;
  frames_.push_back(std::move(frame));
}

bool NoRepeats::push(std::string_view bytes) {
  for (const char c : bytes) {
    // Nested values belong to the items of all lists around them, but only a list's own items are compared.
    for (Frame& frame : frames_) {
      if (!frame.object && frame.distinct) frame.value += c;
    }
    if (!take(c)) return false;
  }
  return true;
}

bool NoRepeats::take(char c) {
  if (in_string_) {
    if (!frames_.empty() && frames_.back().in_key) frames_.back().key += c;
    if (escaped_ || c != '"') {
      escaped_ = !escaped_ && c == '\\';
      return true;
    }
    in_string_ = false;
    return end_string();
  }
  if (c == '"') {
    in_string_ = true;
    if (!frames_.empty() && frames_.back().in_key) frames_.back().key = c;
    return true;
  }
  if (c == '{' || c == '[') {
    open(c == '{');
    return true;
  }
  if (c == 't' || c == 'f' || c == 'n') return may_begin(c);
  if (c != ',' && c != ']' && c != '}') return true;
  if (frames_.empty()) return true;
  Frame& frame = frames_.back();
  if (!frame.object && frame.distinct) frame.value.pop_back();  // the comma or bracket
  if (!end_value()) return false;
  frame.complete = false;
  frame.in_key = frame.object;
  frame.value.clear();
  ++frame.index;
  if (c == ',') return true;
  frames_.pop_back();
  return end_value();
}

// `true`, `false` and `null` are determined by their first letter. If the list has that item already, the letter must
// not come.
bool NoRepeats::may_begin(char letter) const {
  if (frames_.empty() || frames_.back().object || !frames_.back().distinct) return true;
  const Frame& frame = frames_.back();
  const bool first = frame.value.find_first_not_of(" \n\r\t") + 1 == frame.value.size();
  const Json word = letter == 'n' ? Json() : Json(letter == 't');
  return !first || std::find(frame.found.begin(), frame.found.end(), word) == frame.found.end();
}

// Ends a key or a value.
bool NoRepeats::end_string() {
  if (frames_.empty()) return true;
  Frame& frame = frames_.back();
  if (!frame.in_key) return end_value();
  frame.in_key = false;
  const std::string text = std::exchange(frame.key, {});
  const Json key = Json::parse(text, nullptr, false);
  if (key.is_string()) frame.key = key.get<std::string>();
  return add(frame.found, text);
}

// Ends an item of the innermost list. May be called twice for one item, after a string or bracket and at the comma.
bool NoRepeats::end_value() {
  if (frames_.empty()) return true;
  Frame& frame = frames_.back();
  if (frame.object || !frame.distinct || frame.complete) return true;
  if (frame.value.find_first_not_of(" \n\r\t") == std::string::npos) return true;
  frame.complete = true;
  return add(frame.found, frame.value);
}

}  // namespace cortado
