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

// null counts as absent. A wrong type or range throws WireError (400) with the field's name. Call finish() after
// reading all fields: it handles those that nobody asked for.
class Body {
 public:
  // `place` is put before the fields' names in errors: "messages[0].". Throws WireError unless `object` is an object.
  explicit Body(const Json& object, std::string place = "");

  // Checks the fields against the table of wire_fields.h: aliases are read under their main name, values without effect
  // count as absent, and values with an effect that this server does not have are refused. With `strict`, only fields
  // of OpenAI's API and of this server are accepted, and nothing out of range.
  Body(const Json& object, Place fields, bool strict, std::string place = "");
  bool strict() const { return strict_; }

  bool has(const std::string& key);
  const Json& any(const std::string& key);  // null if absent
  std::optional<int64_t> integer(const std::string& key, int64_t low, int64_t high);
  // A limit on tokens. -1 and values above `high` give `high`.
  std::optional<int64_t> most(const std::string& key, int64_t low, int64_t high);
  std::optional<double> number(const std::string& key, double low, double high);
  bool boolean(const std::string& key, bool fallback);
  std::optional<std::string> text(const std::string& key);
  std::string required_text(const std::string& key);
  std::vector<Json> list(const std::string& key);          // a list's entries; any other value as a list of one
  std::vector<std::string> texts(const std::string& key);  // a text or a list of texts

  // Accepts these fields without reading them.
  void ignore(const std::vector<std::string>& keys);
  // Handles the fields that nobody asked for. A probable typo (one edit from a known name), or with `strict` any such
  // field, throws WireError; the others are collected in unknown().
  void finish();
  const std::vector<std::string>& unknown() const { return unknown_; }
  void note(const Body& inner);  // adds the inner object's unknown fields to this one's

  std::string place_of(const std::string& key) const { return place_ + key; }  // the field's name in the whole body

  [[noreturn]] void fail(const std::string& key, const std::string& message) const;

 private:
  void sort(const std::string& key, const Json& value, const Field& field);

  const Json& object_;
  std::string place_;
  Place fields_ = kNoPlace;
  bool strict_ = true;
  std::set<std::string> asked_;
  std::set<std::string> silent_;              // fields whose value counts as absent
  std::map<std::string, std::string> given_;  // main name -> the alias that the body used
  std::vector<std::string> unknown_;
};

}  // namespace cortado
