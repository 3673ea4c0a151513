#include "cortado/serve/body.h"

#include <cmath>

#include "cortado/base/error.h"
#include "cortado/serve/wire.h"

namespace cortado {

namespace {

const Json kNull;

}  // namespace

Body::Body(const Json& object, std::string place) : object_(object), place_(std::move(place)) {
  if (!object.is_object()) {
    throw WireError(400, place_.empty() ? "the body must be a JSON object" : concat(place_, " must be an object"),
                    place_);
  }
  if (!place_.empty()) place_ += ".";
}

Body::Body(const Json& object, Place fields, bool strict, std::string place) : Body(object, std::move(place)) {
  fields_ = fields;
  strict_ = strict;
  for (const auto& [key, value] : object_.items()) {
    const Field* field = find_field(key, fields);
    if (field && (field->strict || !strict)) sort(key, value, *field);
  }
}

// Classifies a field by its row of the table.
void Body::sort(const std::string& key, const Json& value, const Field& field) {
  const auto said = [&](const char* other) {
    const auto found = object_.find(other);
    return found == object_.end() ? kNull : *found;
  };
  if (field.use == Use::kDone) {
    if (!strict_ && is_neutral(field, value)) silent_.insert(key);
    return;
  }
  asked_.insert(key);
  if (field.use == Use::kAny) return;
  if (field.use == Use::kNeutral) {
    const bool moot = !strict_ && *field.other != '\0' && said(field.other) == "none";
    std::string why;
    if (!moot && !is_neutral(field, value, strict_, &why)) fail(key, "is not supported by this server" + why);
    return;
  }
  if (value.is_null()) return;
  const auto [there, first] = given_.emplace(field.other, key);
  const Json& before = first ? said(field.other) : said(there->second.c_str());
  if (!before.is_null() && before != value) {
    fail(key, concat("says something else than \"", place_, first ? field.other : there->second, "\", which it means"));
  }
}

void Body::fail(const std::string& key, const std::string& message) const {
  const auto given = given_.find(key);
  const std::string name = place_ + (given == given_.end() ? key : given->second);
  throw WireError(400, concat("\"", name, "\" ", message), name);
}

const Json& Body::any(const std::string& key) {
  asked_.insert(key);
  if (silent_.contains(key)) return kNull;
  const auto given = given_.find(key);
  const auto found = object_.find(given == given_.end() ? key : given->second);
  return found == object_.end() ? kNull : *found;
}

bool Body::has(const std::string& key) { return !any(key).is_null(); }

std::optional<int64_t> Body::integer(const std::string& key, int64_t low, int64_t high) {
  const Json& value = any(key);
  if (value.is_null()) return std::nullopt;
  // 1.0 counts as an integer, because JavaScript has no other numbers.
  const bool whole =
      value.is_number_integer() || (value.is_number_float() && std::trunc(value.get<double>()) == value.get<double>() &&
                                    std::abs(value.get<double>()) < 9e15);
  if (!whole) fail(key, "must be a whole number");
  const bool huge = value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
  const int64_t number = huge                      ? INT64_MAX
                         : value.is_number_float() ? static_cast<int64_t>(value.get<double>())
                                                   : value.get<int64_t>();
  if (huge || number < low || number > high)
    fail(key, concat("must be from ", low, " to ", high, ", got ", value.dump()));
  return number;
}

std::optional<int64_t> Body::most(const std::string& key, int64_t low, int64_t high) {
  if (strict_) return integer(key, low, high);
  const Json& value = any(key);
  const bool all = value.is_number() && (value == -1 || value.get<double>() > static_cast<double>(high));
  return all ? std::optional(high) : integer(key, low, high);
}

std::optional<double> Body::number(const std::string& key, double low, double high) {
  const Json& value = any(key);
  if (value.is_null()) return std::nullopt;
  if (!value.is_number()) fail(key, "must be a number");
  const double number = value.get<double>();
  if (!(number >= low && number <= high)) fail(key, concat("must be from ", low, " to ", high, ", got ", value.dump()));
  return number;
}

bool Body::boolean(const std::string& key, bool fallback) {
  const Json& value = any(key);
  if (value.is_null()) return fallback;
  if (!value.is_boolean()) fail(key, "must be true or false");
  return value.get<bool>();
}

std::optional<std::string> Body::text(const std::string& key) {
  const Json& value = any(key);
  if (value.is_null()) return std::nullopt;
  if (!value.is_string()) fail(key, "must be a text");
  return value.get<std::string>();
}

std::string Body::required_text(const std::string& key) {
  const auto value = text(key);
  if (!value) fail(key, "is missing");
  return *value;
}

std::vector<Json> Body::list(const std::string& key) {
  const Json& value = any(key);
  if (value.is_null()) return {};
  return value.is_array() ? std::vector<Json>(value.begin(), value.end()) : std::vector<Json>{value};
}

std::vector<std::string> Body::texts(const std::string& key) {
  std::vector<std::string> all;
  for (const Json& item : list(key)) {
    if (!item.is_string()) fail(key, "must be a text or a list of texts");
    all.push_back(item.get<std::string>());
  }
  return all;
}

void Body::ignore(const std::vector<std::string>& keys) { asked_.insert(keys.begin(), keys.end()); }

void Body::note(const Body& inner) { unknown_.insert(unknown_.end(), inner.unknown_.begin(), inner.unknown_.end()); }

void Body::finish() {
  std::vector<std::string> known;  // filled when the first unknown field is found
  for (const auto& [key, value] : object_.items()) {
    if (asked_.contains(key)) continue;
    if (known.empty()) {
      known = field_names(fields_, strict_);
      known.insert(known.end(), asked_.begin(), asked_.end());
    }
    if (!strict_ && !slip_of(key, known)) {
      unknown_.push_back(place_ + key);
      continue;
    }
    const std::string near = nearest_word(key, known);
    fail(key, concat("is not known here", near.empty() ? "" : concat("; did you mean \"", near, "\"?")));
  }
}

}  // namespace cortado
