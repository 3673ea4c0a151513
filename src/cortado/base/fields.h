// Describes the fields of a struct once, for both reading it from a JSON object and writing it to one.
#pragma once

#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cortado/base/error.h"
#include "cortado/base/json.h"
#include "cortado/base/words.h"

namespace cortado {

//   void fields(JsonFields& json, Embedding& embedding) {
//     json.boolean("tied", embedding.tied);
//     json.integer("rows", embedding.rows, 1, 1 << 20);
//   }
//
// Reading is as strict as JsonReader. A field's current value is its default. With `required`, there are no defaults.
class JsonFields {
 public:
  explicit JsonFields(JsonReader& from, bool required = false) : from_(&from), required_(required) {}
  explicit JsonFields(Json& to) : to_(&to) {}

  bool reading() const { return from_ != nullptr; }
  // When reading: whether the key is present and not null. When writing: always false.
  bool has(const std::string& key) { return from_ && !from_->any(key).is_null(); }
  std::string place() const { return from_ ? from_->place() : ""; }
  // When reading, throws InputError with the object's place and the reason. Does nothing when writing.
  template <typename... Parts>
  void fail_if(bool bad, const Parts&... parts) const {
    if (bad && from_) from_->fail(concat(parts...));
  }

  // When reading, throws InputError if one of `keys` is missing, even if the other fields have defaults.
  void need(const std::vector<std::string>& keys) {
    for (const std::string& key : keys) fail_if(!has(key), "key \"", key, "\" is missing");
  }

  // `read` reads the object at `place`, whose fields `members(json)` describes; `written` writes one.
  template <typename Members>
  static void read(const Json& object, const std::string& place, const Members& members, bool required = false) {
    JsonReader reader(object, place);
    JsonFields json(reader, required);
    members(json);
    reader.finish();
  }
  template <typename Members>
  static Json written(const Members& members) {
    Json object = Json::object();
    JsonFields json(object);
    members(json);
    return object;
  }

  // When reading, `read(reader)` gives the value.
  template <typename Value, typename Read>
  void field(const std::string& key, Value& value, const Read& read) {
    if (from_) {
      value = read(*from_);
    } else {
      (*to_)[key] = value;
    }
  }

  template <typename Integer>
  void integer(const std::string& key, Integer& value, int64_t low, int64_t high) {
    field(key, value, [&](JsonReader& reader) {
      return static_cast<Integer>(reader.integer(key, low, high, fallback(static_cast<int64_t>(value))));
    });
  }
  void number(const std::string& key, double& value, double low, double high) {
    field(key, value, [&](JsonReader& reader) { return reader.number(key, low, high, fallback(value)); });
  }
  // A number or none. null and an absent key mean none.
  void optional_number(const std::string& key, std::optional<double>& value, double low, double high) {
    if (from_) {
      value = from_->optional_number(key, low, high);
    } else {
      (*to_)[key] = value ? Json(*value) : Json();
    }
  }
  // A limit. null and an absent key mean infinity, which JSON cannot express.
  void limit(const std::string& key, double& value) {
    constexpr double kLargest = std::numeric_limits<double>::max();
    if (from_) {
      value = from_->optional_number(key, -kLargest, kLargest).value_or(std::numeric_limits<double>::infinity());
    } else {
      (*to_)[key] = std::isfinite(value) ? Json(value) : Json();
    }
  }
  void boolean(const std::string& key, bool& value) {
    field(key, value, [&](JsonReader& reader) { return reader.boolean(key, fallback(value)); });
  }
  void text(const std::string& key, std::string& value) {
    field(key, value, [&](JsonReader& reader) { return reader.text(key, fallback(value)); });
  }
  void choice(const std::string& key, std::string& value, const std::vector<std::string>& allowed) {
    field(key, value, [&](JsonReader& reader) { return reader.choice(key, allowed, fallback(value)); });
  }
  template <typename Enum>
  void word(const std::string& key, Enum& value, const Words<Enum>& words) {
    std::string name = name_of(words, value);
    choice(key, name, names_in(words));
    value = value_of(words, name, key);
  }

  // A list of texts, numbers or integers. `expected` names the entries in error messages.
  template <typename Value>
  void values(const std::string& key, std::vector<Value>& list, const std::string& expected) {
    field(key, list, [&](JsonReader& reader) {
      const Json all = reader.any(key);
      if (all.is_null() && !required_) return list;
      bool good = all.is_array();
      for (const Json& item : good ? all : Json::array()) good &= holds<Value>(item);
      if (!good) reader.fail("key \"", key, "\": expected a list of ", expected);
      return all.get<std::vector<Value>>();
    });
  }

  // A nested object, whose fields `members(inner)` describes.
  template <typename Members>
  void object(const std::string& key, const Members& members) {
    if (from_) {
      read(from_->object(key), from_->place() + "." + key, members, required_);
    } else {
      (*to_)[key] = written(members);
    }
  }
  // A list of objects. `members(inner, item)` describes the fields of each.
  template <typename Item, typename Members>
  void list(const std::string& key, std::vector<Item>& items, const Members& members) {
    const auto of = [&](Item& item) { return [&](JsonFields& inner) { members(inner, item); }; };
    Json all = from_ ? from_->any(key) : Json::array();
    fail_if(!all.is_array(), "key \"", key, "\": expected a list");
    if (from_) items.resize(all.size());
    for (size_t i = 0; i < items.size(); ++i) {
      if (from_) {
        read(all[i], concat(from_->place(), ".", key, "[", i, "]"), of(items[i]), required_);
      } else {
        all.push_back(written(of(items[i])));
      }
    }
    if (!from_) (*to_)[key] = std::move(all);
  }

 private:
  template <typename Value>
  static bool holds(const Json& item) {
    if constexpr (std::is_integral_v<Value>) {
      return item.is_number_integer() && std::in_range<Value>(item.get<int64_t>());
    } else {
      return std::is_floating_point_v<Value> ? item.is_number() : item.is_string();
    }
  }
  template <typename Value>
  std::optional<Value> fallback(const Value& value) const {
    return required_ ? std::nullopt : std::optional(value);
  }
  JsonReader* from_ = nullptr;
  Json* to_ = nullptr;
  bool required_ = false;
};

// Reads a struct that describes its fields in a member `void fields(JsonFields&)`. `place` names the object in error
// messages; with `required`, a missing field is an error. Throws InputError if a field is unknown or has a wrong value.
template <typename Struct>
Struct from_fields(const Json& object, const std::string& place, bool required = false) {
  Struct result;
  JsonFields::read(object, place, [&](JsonFields& json) { result.fields(json); }, required);
  return result;
}
// Writes such a struct as a JSON object.
template <typename Struct>
Json json_of(Struct it) {
  return JsonFields::written([&](JsonFields& json) { it.fields(json); });
}

}  // namespace cortado
