#include "cortado/serve/schema.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <set>
#include <utility>

#include "cortado/base/error.h"
#include "cortado/serve/pattern.h"
#include "cortado/serve/set_rules.h"
#include "cortado/serve/text_formats.h"

namespace cortado {

namespace {

constexpr int kDeepestHeld = 64;
constexpr int64_t kLargestCount = 1024;
constexpr int64_t kLargestInteger = 999'999'999'999'999'999;  // 18 digits
constexpr size_t kMostInSet = 64;
constexpr size_t kMostAlternatives = 64;

bool is_type(const Json& value, const std::string& type) {
  if (type == "null") return value.is_null();
  if (type == "boolean") return value.is_boolean();
  if (type == "string") return value.is_string();
  if (type == "array") return value.is_array();
  if (type == "object") return value.is_object();
  if (type == "number") return value.is_number();
  const bool whole = value.is_number_float() && std::trunc(value.get<double>()) == value.get<double>();
  return type == "integer" && (value.is_number_integer() || whole);
}

// Returns the types that a schema's keywords imply.
std::vector<std::string> implied_types(const Json& schema) {
  static const std::vector<std::pair<std::string, std::vector<const char*>>> kOf = {
      {"object",
       {"properties", "required", "additionalProperties", "patternProperties", "propertyNames", "minProperties",
        "maxProperties", "unevaluatedProperties"}},
      {"array", {"items", "prefixItems", "minItems", "maxItems", "uniqueItems", "unevaluatedItems"}},
      {"string", {"minLength", "maxLength", "pattern"}},
      {"number", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}}};
  std::vector<std::string> types;
  for (const auto& [type, keys] : kOf) {
    if (std::any_of(keys.begin(), keys.end(), [&](const char* key) { return schema.contains(key); })) {
      types.push_back(type);
    }
  }
  return types;
}

// Returns those of `keys` that the schema has.
Json some_of(const Json& schema, std::initializer_list<const char*> keys) {
  Json some = Json::object();
  for (const char* key : keys) {
    if (schema.contains(key)) some[key] = schema.at(key);
  }
  return some;
}

int64_t count_of(const Json& schema, const char* key) {
  const Json& value = schema.at(key);
  const bool good = value.is_number() && value.get<double>() >= 0 && is_type(value, "integer");
  fail_input_if(!good, key, " must be an integer that is not negative");
  return static_cast<int64_t>(std::min(value.get<double>(), 1e15));
}

Lengths lengths_of(const Json& schema) {
  Lengths lengths;
  if (schema.contains("minLength")) lengths.least = count_of(schema, "minLength");
  if (schema.contains("maxLength")) lengths.most = count_of(schema, "maxLength");
  fail_input_if(lengths.most && *lengths.most < lengths.least, "minLength ", lengths.least,
                " is greater than maxLength ", lengths.most.value_or(0));
  return lengths;
}

class SchemaTranslator {
 public:
  SchemaTranslator(const Json& root, bool closed) : root_(root), closed_(closed) {
    const std::string text = root.dump();
    for (mark_ = "@held"; text.find(mark_) != std::string::npos;) mark_ += '@';
  }

  EnforcedSchema translate() {
    EnforcedSchema held;
    held.schema = part(root_, 0);
    for (const char* key : {"$defs", "definitions"}) {
      if (!root_.is_object() || !root_.contains(key) || !root_.at(key).is_object()) continue;
      if (!held.schema.is_object()) continue;
      Json& definitions = held.schema[key] = Json::object();
      for (const auto& [name, schema] : root_.at(key).items()) definitions[name] = part(schema, 1);
    }
    held.rules = std::move(rules_);
    held.distinct = distinct_;
    return held;
  }

 private:
  Json part(const Json& schema, int depth) {
    fail_input_if(depth > kDeepestHeld, "schemas lie too deep in one another");
    if (!schema.is_object()) return schema;
    if (schema.contains("$ref")) return some_of(schema, {"$ref"});
    if (schema.contains("const") || schema.contains("enum")) return values(schema);
    if (schema.contains("anyOf")) return any_of(schema.at("anyOf"), depth);
    if (schema.contains("oneOf")) return one_of(schema, depth);
    if (schema.contains("allOf")) return all_of(schema.at("allOf"), depth);
    const Json types = schema.contains("type") ? schema.at("type") : Json();
    if (types.is_array()) {
      Json all = Json::array();
      for (const Json& type : types) {
        Json one = schema;
        one["type"] = type;
        all.push_back(part(one, depth + 1));
      }
      return all.size() == 1 ? all[0] : Json{{"anyOf", all}};
    }
    if (!types.is_null() && !types.is_string()) return some_of(schema, {"type"});
    std::string type = types.is_string() ? types.get<std::string>() : "";
    if (type.empty()) {
      const auto implied = implied_types(schema);
      if (implied.empty()) return Json::object();
      fail_input_if(implied.size() > 1, "a schema without \"type\" speaks of ", implied.front(), "s and ",
                    implied.back(), "s");
      type = implied[0];
    }
    if (type == "string") return text(schema);
    if (type == "integer" || type == "number") return number(schema, type);
    if (type == "array") return list(schema, depth);
    if (type == "object") return object(schema, depth);
    return {{"type", type}};
  }

  // Handles "const" and "enum": keeps the values that have the schema's types.
  static Json values(const Json& schema) {
    const Json all = schema.contains("const") ? Json::array({schema.at("const")}) : schema.at("enum");
    fail_input_if(!all.is_array() || all.empty(), "\"enum\" must be a list of at least one value");
    Json types = schema.contains("type") ? schema.at("type") : Json();
    if (types.is_string()) types = Json::array({types});
    Json fitting = Json::array();
    for (const Json& value : all) {
      const bool fits = !types.is_array() || std::any_of(types.begin(), types.end(), [&](const Json& type) {
        return type.is_string() && is_type(value, type.get<std::string>());
      });
      const bool listed = !schema.contains("enum") || std::find(schema.at("enum").begin(), schema.at("enum").end(),
                                                                value) != schema.at("enum").end();
      fail_input_if(value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX, value.dump(), " is too large");
      if (fits && listed) fitting.push_back(value);
    }
    fail_input_if(fitting.empty(), "no value of \"", schema.contains("const") ? "const" : "enum", "\" is of its type");
    return {{"enum", fitting}};
  }

  Json any_of(const Json& schemas, int depth) {
    Json all = Json::array();
    fail_input_if(!schemas.is_array() || schemas.empty(), "\"anyOf\" must be a list of at least one schema");
    std::string why;
    for (const Json& schema : schemas) {
      try {
        all.push_back(part(schema, depth + 1));
      } catch (const InputError& error) {
        why = error.what();  // one alternative is enough
      }
    }
    fail_input_if(all.empty(), why);
    return {{"anyOf", all}};
  }

  Json all_of(const Json& schemas, int depth) {
    fail_input_if(!schemas.is_array() || schemas.size() != 1, "\"allOf\" of more than one schema is not supported");
    return part(schemas[0], depth + 1);
  }

  // Collects a schema's alternatives, with references and nested alternatives resolved.
  void collect(const Json& schema, std::vector<Json>& all, int depth) const {
    fail_input_if(depth > kDeepestHeld || all.size() > kMostAlternatives, "\"oneOf\" has too many alternatives");
    if (schema.is_object() && schema.contains("$ref") && schema.at("$ref").is_string()) {
      const Json* meant = find_reference(root_, schema.at("$ref").get<std::string>());
      if (meant) return collect(*meant, all, depth + 1);
    }
    for (const char* key : {"anyOf", "oneOf"}) {
      if (!schema.is_object() || !schema.contains(key) || !schema.at(key).is_array()) continue;
      for (const Json& one : schema.at(key)) collect(one, all, depth + 1);
      return;
    }
    all.push_back(schema);
  }

  // Returns the values that a schema allows; null if they are not a finite list.
  Json values_of(const Json& schema) const {
    std::vector<Json> meant;
    collect(schema, meant, 0);
    Json all = Json::array();
    for (const Json& one : meant) {
      if (!one.is_object() || !(one.contains("const") || one.contains("enum"))) return nullptr;
      const Json held = values(one);
      for (const Json& value : held.at("enum")) all.push_back(value);
    }
    return all;
  }

  static bool disjoint(const Json& one, const Json& other) {
    return std::none_of(one.begin(), one.end(),
                        [&](const Json& value) { return std::find(other.begin(), other.end(), value) != other.end(); });
  }

  // Whether no value has both types.
  static bool types_differ(const Json& one, const Json& other) {
    const auto types = [](const Json& schema) {
      Json found = schema.contains("type") ? schema.at("type") : Json(implied_types(schema));
      return found.is_string() ? Json::array({found}) : found;
    };
    const Json some = types(one), others = types(other);
    if (some.empty() || others.empty() || !some.is_array() || !others.is_array()) return false;
    return std::none_of(some.begin(), some.end(), [&](const Json& type) {
      return std::any_of(others.begin(), others.end(), [&](const Json& it) {
        return it == type || (it == "number" && type == "integer") || (it == "integer" && type == "number");
      });
    });
  }

  bool tagged_apart(const Json& one, const Json& other, const std::string& tag) const {
    const auto tags = [&](const Json& schema) {
      const bool has = schema.is_object() && schema.contains("properties") && schema.at("properties").is_object() &&
                       schema.at("properties").contains(tag);
      return has ? values_of(schema.at("properties").at(tag)) : Json();
    };
    const Json some = tags(one), others = tags(other);
    return !some.is_null() && !others.is_null() && disjoint(some, others);
  }

  // "oneOf": allowed if no value fits two of the alternatives. For objects it is enough that a property with different
  // values tells them apart; then it becomes required.
  Json one_of(const Json& schema, int depth) {
    std::vector<Json> all;
    fail_input_if(!schema.at("oneOf").is_array() || schema.at("oneOf").empty(),
                  "\"oneOf\" must be a list of at least one schema");
    collect(schema, all, 0);
    std::set<std::pair<size_t, std::string>> needed;
    for (size_t i = 0; i < all.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        if (types_differ(all[i], all[j])) continue;
        const Json some = values_of(all[i]), others = values_of(all[j]);
        if (!some.is_null() && !others.is_null() && disjoint(some, others)) continue;
        const auto tag = tag_of(schema, all[i], all[j]);
        fail_input_if(!tag, "\"oneOf\" of schemas that one value could fit two of is not supported");
        needed.insert({i, *tag});
        needed.insert({j, *tag});
      }
    }
    for (const auto& [number, tag] : needed) {
      Json& required = all[number]["required"];
      if (!required.is_array()) required = Json::array();
      if (std::find(required.begin(), required.end(), tag) == required.end()) required.push_back(tag);
    }
    return any_of(Json(all), depth);
  }

  std::optional<std::string> tag_of(const Json& schema, const Json& one, const Json& other) const {
    std::vector<std::string> tags;
    if (schema.contains("discriminator") && schema.at("discriminator").is_object()) {
      const Json name = schema.at("discriminator").value("propertyName", Json());
      if (name.is_string()) tags.push_back(name);
    }
    if (one.is_object() && one.contains("properties") && one.at("properties").is_object()) {
      for (const auto& [name, its] : one.at("properties").items()) tags.push_back(name);
    }
    for (const auto& tag : tags) {
      if (tagged_apart(one, other, tag)) return tag;
    }
    return std::nullopt;
  }

  Json text(const Json& schema) {
    const Lengths lengths = lengths_of(schema);
    const bool limited = schema.contains("minLength") || schema.contains("maxLength");
    std::string format;
    if (schema.contains("format")) {
      fail_input_if(!schema.at("format").is_string(), "\"format\" must be a text");
      format = schema.at("format").get<std::string>();
    }
    if (schema.contains("pattern")) {
      fail_input_if(!schema.at("pattern").is_string(), "\"pattern\" must be a text");
      return rule(Pattern(schema.at("pattern").get<std::string>()).within(lengths));
    }
    if (const auto* known = pattern_of_format(format)) return rule(Pattern(*known).within(lengths));
    fail_input_if(limited && is_built_in(format), "\"format\" ", format, " beside a limit of length is not supported");
    Json held = {{"type", "string"}};
    if (is_built_in(format)) held["format"] = format;
    if (lengths.least > 0) held["minLength"] = lengths.least;
    if (lengths.most) held["maxLength"] = std::min(*lengths.most, std::max(kLargestCount, lengths.least));
    return held;
  }

  // Returns a constant that the rule will replace.
  Json rule(const Pattern& pattern) {
    const auto known =
        std::find_if(rules_.begin(), rules_.end(), [&](const auto& it) { return pattern.rules(it.name) == it.rules; });
    if (known != rules_.end()) return {{"const", known->place}};
    const std::string name = concat("held_text_", rules_.size());
    return place(name, pattern.rules(name));
  }

  Json place(const std::string& name, std::string rules) {
    rules_.push_back({.place = concat(mark_, rules_.size(), "@"), .name = name, .rules = std::move(rules)});
    return {{"const", rules_.back().place}};
  }

  // Integers are limited to 18 digits, because most programs can't read longer ones.
  static Json number(const Json& schema, const std::string& type) {
    Json held = some_of(schema, {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"});
    held["type"] = type;
    const bool low = held.contains("minimum") || held.contains("exclusiveMinimum");
    const bool high = held.contains("maximum") || held.contains("exclusiveMaximum");
    if (type == "number" || low == high || held.contains("multipleOf")) return held;
    held[low ? "maximum" : "minimum"] = low ? kLargestInteger : -kLargestInteger;
    return held;
  }

  Json list(const Json& schema, int depth) {
    Json held = some_of(schema, {"minItems", "unevaluatedItems"});
    held["type"] = "array";
    if (schema.contains("maxItems")) {
      const int64_t least = schema.contains("minItems") ? count_of(schema, "minItems") : 0;
      held["maxItems"] = std::min(count_of(schema, "maxItems"), std::max(kLargestCount, least));
    }
    if (schema.contains("items")) held["items"] = part(schema.at("items"), depth + 1);
    if (schema.contains("prefixItems") && schema.at("prefixItems").is_array()) {
      held["prefixItems"] = Json::array();
      for (const Json& item : schema.at("prefixItems")) held["prefixItems"].push_back(part(item, depth + 1));
    }
    const bool unique = schema.contains("uniqueItems") && schema.at("uniqueItems") == true;
    const bool one = held.contains("maxItems") && held.at("maxItems") <= 1;
    if (!unique || one) return held;
    const Json values = held.contains("items") && !held.contains("prefixItems") ? values_of_item(schema) : Json();
    if (!values.is_null()) return set(values, held);
    distinct_ = true;
    held["uniqueItems"] = true;  // the library ignores this keyword
    return held;
  }

  // Returns all values of a list's items without repetition; null if they are not few.
  Json values_of_item(const Json& schema) const {
    std::vector<Json> meant;
    collect(schema.at("items"), meant, 0);
    Json all = Json::array();
    for (const Json& one : meant) {
      Json some = values_of(one);
      const Json type = one.is_object() ? one.value("type", Json()) : Json();
      if (some.is_null() && type == "boolean") some = {true, false};
      if (some.is_null() && type == "null") some = Json::array({nullptr});
      if (some.is_null() && type == "integer" && one.contains("minimum") && one.contains("maximum") && one.size() < 8) {
        const double low = one.at("minimum"), high = one.at("maximum");
        if (high - low < static_cast<double>(kMostInSet) && std::abs(low) < 1e15) {
          some = Json::array();
          for (auto value = static_cast<int64_t>(std::ceil(low)); static_cast<double>(value) <= high; ++value) {
            some.push_back(value);
          }
        }
      }
      if (some.is_null()) return nullptr;
      for (const Json& value : some) {
        if (std::find(all.begin(), all.end(), value) == all.end()) all.push_back(value);
      }
    }
    return all.size() > kMostInSet ? Json() : all;
  }

  Json set(const Json& values, const Json& limits) {
    const auto least = limits.contains("minItems") ? count_of(limits, "minItems") : 0;
    const auto most = limits.contains("maxItems") ? count_of(limits, "maxItems") : least + kLargestCount;
    const std::string name = concat("held_set_", rules_.size());
    return place(name, rules_of_set(name, values, {least, most}));
  }

  Json object(const Json& schema, int depth) {
    Json held = {{"type", "object"}};
    const bool has_properties = schema.contains("properties");
    Json properties = has_properties ? schema.at("properties") : Json::object();
    Json required = schema.contains("required") ? schema.at("required") : Json::array();
    fail_input_if(!properties.is_object(), "properties must be an object");
    fail_input_if(!required.is_array(), "required must be a list");
    const bool patterns = schema.contains("patternProperties") && !schema.at("patternProperties").empty();
    Json others = others_of(schema, has_properties, patterns, properties.size());
    for (const Json& name : required) {
      fail_input_if(!name.is_string(), "required must be a list of texts");
      if (properties.contains(name.get<std::string>())) continue;
      const bool none = schema.value("additionalProperties", Json()) == false ||
                        schema.value("unevaluatedProperties", Json()) == false;
      fail_input_if(none || patterns, "\"required\" names ", name.dump(), ", which \"properties\" lacks");
      properties[name.get<std::string>()] = others.is_object() ? others : Json::object();
    }
    for (auto& [name, its] : properties.items()) its = part(its, depth + 1);
    if (!properties.empty()) held["properties"] = properties;
    if (!required.empty()) held["required"] = required;
    if (!others.is_null()) held["additionalProperties"] = others.is_object() ? part(others, depth + 1) : others;
    if (patterns) held["patternProperties"] = pattern_properties(schema.at("patternProperties"), properties, depth);
    if (schema.contains("propertyNames")) held["propertyNames"] = names(schema.at("propertyNames"));
    count_properties(schema, held, required.size());
    return held;
  }

  // Returns the schema of additional properties: false, true, a schema, or null for the library's default.
  Json others_of(const Json& schema, bool has_properties, bool patterns, size_t count) const {
    Json others = schema.value("additionalProperties", schema.value("unevaluatedProperties", Json()));
    const bool more =
        schema.contains("minProperties") && count_of(schema, "minProperties") > static_cast<int64_t>(count);
    fail_input_if(patterns && !others.is_null() && others != false,
                  "\"patternProperties\" beside other additional properties is not supported");
    if (patterns || (others.is_null() && has_properties && !closed_ && !more)) others = false;
    return others;
  }

  // A key that matches a property and a pattern, or two patterns, would need to fit two schemas.
  Json pattern_properties(const Json& patterns, const Json& properties, int depth) {
    fail_input_if(!patterns.is_object() || patterns.size() != 1,
                  "\"patternProperties\" of more than one pattern is not supported");
    Json held = Json::object();
    for (const auto& [text, schema] : patterns.items()) {
      const Pattern pattern(concat("[^\\u0000]*(?:", text, ")[^\\u0000]*"));  // the pattern may match anywhere in a key
      for (const auto& [name, its] : properties.items()) {
        fail_input_if(pattern.matches(name), "\"", name, "\" is of \"properties\" and of \"patternProperties\"");
      }
      check_for_library(text);
      held[text] = part(schema, depth + 1);
    }
    return held;
  }

  static Json names(const Json& schema) {
    fail_input_if(!schema.is_object(), "propertyNames must be an object");
    if (schema.contains("pattern") && schema.at("pattern").is_string()) {
      check_for_library(schema.at("pattern").get<std::string>());
      const bool alone = !schema.contains("minLength") && !schema.contains("maxLength");
      fail_input_if(!alone, "\"propertyNames\" of a pattern and a length is not supported");
    }
    return schema;
  }

  // Checks an expression for keys, which the library parses itself.
  static void check_for_library(const std::string& expression) {
    const Pattern pattern(expression);
    const bool plain = std::all_of(expression.begin(), expression.end(), [](char c) { return c >= ' ' && c <= '~'; });
    fail_input_if(
        !plain || !pattern.has_plain_text(),
        "a pattern of keys can have no characters but ASCII's, and no quotes, backslashes or line ends: ", expression);
  }

  void count_properties(const Json& schema, Json& held, size_t required) {
    if (schema.contains("maxProperties")) {
      held["maxProperties"] = std::min(count_of(schema, "maxProperties"), std::max(kLargestCount, int64_t{1}));
    }
    if (!schema.contains("minProperties")) return;
    const int64_t least = count_of(schema, "minProperties");
    held["minProperties"] = least;
    if (least > static_cast<int64_t>(required)) distinct_ = true;  // a repeated key does not count as another property
  }

  const Json& root_;
  bool closed_, distinct_ = false;
  std::string mark_;
  std::vector<EnforcedSchema::Rule> rules_;
};

}  // namespace

EnforcedSchema enforced_schema(const Json& schema, bool closed) { return SchemaTranslator(schema, closed).translate(); }

const Json* find_reference(const Json& root, const std::string& reference) {
  if (!reference.starts_with('#')) return nullptr;
  try {
    return &root.at(Json::json_pointer(reference.substr(1)));
  } catch (const Json::exception&) {
    return nullptr;
  }
}

}  // namespace cortado
