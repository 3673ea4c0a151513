#include "cortado/serve/body.h"

#include <cmath>

#include "cortado/base/error.h"
#include "cortado/serve/wire.h"

namespace cortado {

namespace {

const Json kNull;

bool says_something(const Json& value) {
  const bool nothing = value.is_null() || (value.is_boolean() && !value.get<bool>());
  return !nothing && !(value.is_structured() && value.empty());
}

}  // namespace

Body::Body(const Json& object, std::string place) : object_(object), place_(std::move(place)) {
  if (!object.is_object()) {
    throw WireError(400, place_.empty() ? "the body must be a JSON object" : concat(place_, " must be an object"),
                    place_);
  }
  if (!place_.empty()) place_ += ".";
}

void Body::fail(const std::string& key, const std::string& message) const {
  throw WireError(400, concat("\"", place_, key, "\" ", message), place_ + key);
}

const Json& Body::any(const std::string& key) {
  asked_.insert(key);
  const auto found = object_.find(key);
  return found == object_.end() ? kNull : *found;
}

bool Body::has(const std::string& key) { return !any(key).is_null(); }

std::optional<int64_t> Body::integer(const std::string& key, int64_t low, int64_t high) {
  const Json& value = any(key);
  if (value.is_null()) return std::nullopt;
  // 1.0 is one, too, as JavaScript has no other numbers.
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

std::vector<std::string> Body::texts(const std::string& key) {
  const Json& value = any(key);
  if (value.is_null()) return {};
  if (value.is_string()) return {value.get<std::string>()};
  if (!value.is_array()) fail(key, "must be a text or a list of texts");
  std::vector<std::string> all;
  for (const Json& item : value) {
    if (!item.is_string()) fail(key, "must be a text or a list of texts");
    all.push_back(item.get<std::string>());
  }
  return all;
}

void Body::refuse(const std::vector<std::string>& keys) {
  for (const std::string& key : keys) {
    if (says_something(any(key))) fail(key, "is not supported by this server");
  }
}

void Body::ignore(const std::vector<std::string>& keys) { asked_.insert(keys.begin(), keys.end()); }

void Body::finish() const {
  for (const auto& [key, value] : object_.items()) {
    if (asked_.contains(key)) continue;
    const std::string near = nearest_word(key, {asked_.begin(), asked_.end()});
    fail(key, concat("is not known here", near.empty() ? "" : concat("; did you mean \"", near, "\"?")));
  }
}

}  // namespace cortado
