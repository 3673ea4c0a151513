#include "cortado/serve/body.h"

#include "cortado/base/error.h"
#include "cortado/serve/wire.h"

namespace cortado {

namespace {

const Json* checked(const Json& object, const std::string& place) {
  if (object.is_object()) return &object;
  throw WireError(400, place.empty() ? "the body must be a JSON object" : place + " must be an object", place);
}

}  // namespace

Body::Body(const Json& object, const std::string& place)
    : JsonReader(std::shared_ptr<const Json>(std::shared_ptr<void>(), checked(object, place)), place) {}

Body::Body(const Json& object, Place fields, bool strict, const std::string& place) : Body(object, place) {
  fields_ = fields;
  strict_ = strict;
  for (const auto& [key, value] : object_->items()) {
    const Field* field = find_field(key, fields);
    if (field && (field->strict || !strict)) sort(key, value, *field);
  }
}

// Classifies a field by its row of the table.
void Body::sort(const std::string& key, const Json& value, const Field& field) {
  const auto said = [&](const char* other) {
    const auto found = object_->find(other);
    return found == object_->end() ? Json() : *found;
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
  const Json before = first ? said(field.other) : said(there->second.c_str());
  if (!before.is_null() && before != value) {
    fail(key,
         concat("says something else than \"", place_of(first ? field.other : there->second), "\", which it means"));
  }
}

void Body::fail(const std::string& key, const std::string& message) const {
  const auto given = given_.find(key);
  const std::string name = place_of(given == given_.end() ? key : given->second);
  throw WireError(400, concat("\"", name, "\" ", message), name);
}

const Json* Body::look(const std::string& key) const {
  if (silent_.contains(key)) return nullptr;
  const auto given = given_.find(key);
  return JsonReader::look(given == given_.end() ? key : given->second);
}

void Body::refuse(const std::string& key, const Json* value, const std::string& expected,
                  const std::string& hint) const {
  if (!value) fail(key, "is missing");
  fail(key, concat("must be ", expected, ", got ", excerpt(*value), hint));
}

std::optional<int64_t> Body::most(const std::string& key, int64_t low, int64_t high) {
  if (strict_) return optional_integer(key, low, high);
  const Json& value = any(key);
  const bool all = value.is_number() && (value == -1 || value.get<double>() > static_cast<double>(high));
  return all ? std::optional(high) : optional_integer(key, low, high);
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
  for (const auto& [key, value] : object_->items()) {
    if (asked_.contains(key)) continue;
    if (known.empty()) {
      known = field_names(fields_, strict_);
      known.insert(known.end(), asked_.begin(), asked_.end());
    }
    if (!strict_ && !slip_of(key, known)) {
      unknown_.push_back(place_of(key));
      continue;
    }
    const std::string near = nearest_word(key, known);
    fail(key, concat("is not known here", near.empty() ? "" : concat("; did you mean \"", near, "\"?")));
  }
}

}  // namespace cortado
