// Typed access to the fields of a request's body.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cortado/base/json.h"
#include "cortado/serve/wire_fields.h"

namespace cortado {

// Reads a body as JsonReader reads a config, with errors of HTTP: a wrong type or range throws WireError (400) with the
// field's name. Call finish() after reading all fields: it handles those that nobody asked for. The object must outlive
// the body.
class Body : public JsonReader {
 public:
  // `place` is put before the fields' names in errors: "messages[0]". Throws WireError unless `object` is an object.
  explicit Body(const Json& object, const std::string& place = "");

  // Checks the fields against the table of wire_fields.h: aliases are read under their main name, values without effect
  // count as absent, and values with an effect that this server does not have are refused. With `strict`, only fields
  // of OpenAI's API and of this server are accepted, and nothing out of range.
  Body(const Json& object, Place fields, bool strict, const std::string& place = "");
  bool strict() const { return strict_; }

  bool has(const std::string& key) { return !any(key).is_null(); }
  // A limit on tokens. -1 and values above `high` give `high`.
  std::optional<int64_t> most(const std::string& key, int64_t low, int64_t high);
  std::vector<Json> list(const std::string& key);          // a list's entries; any other value as a list of one
  std::vector<std::string> texts(const std::string& key);  // a text or a list of texts

  // Accepts these fields without reading them.
  void ignore(const std::vector<std::string>& keys);
  // Handles the fields that nobody asked for. A probable typo (one edit from a known name), or with `strict` any such
  // field, throws WireError; the others are collected in unknown().
  void finish();
  const std::vector<std::string>& unknown() const { return unknown_; }
  void note(const Body& inner);  // adds the inner object's unknown fields to this one's

  // The field's name in the whole body.
  std::string place_of(const std::string& key) const { return place().empty() ? key : place() + "." + key; }

  [[noreturn]] void fail(const std::string& key, const std::string& message) const;

 private:
  void sort(const std::string& key, const Json& value, const Field& field);
  const Json* look(const std::string& key) const override;
  [[noreturn]] void refuse(const std::string& key, const Json* value, const std::string& expected,
                           const std::string& hint) const override;

  Place fields_ = kNoPlace;
  bool strict_ = true;
  std::set<std::string> silent_;              // fields whose value counts as absent
  std::map<std::string, std::string> given_;  // main name -> the alias that the body used
  std::vector<std::string> unknown_;
};

}  // namespace cortado
