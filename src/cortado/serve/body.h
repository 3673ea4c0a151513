// The fields of a request's body, of which each is asked for by its type.
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

// Null counts as absent. WireError (400, naming the field) for a wrong type or range. Once everything has been asked
// for, finish() looks at what nobody asked for.
class Body {
 public:
  // `place`: in front of the fields' names, "messages[0]."; WireError unless `object` is an object.
  explicit Body(const Json& object, std::string place = "");

  // Which fields there can be, by the table of wire_fields.h: other names are read as those that they mean, what changes
  // nothing is as if it were not there, and what would change something that is not done here is refused. `strict`: the
  // fields alone that OpenAI's API and this server read, and nothing out of range.
  Body(const Json& object, Place fields, bool strict, std::string place = "");
  bool strict() const { return strict_; }

  bool has(const std::string& key);
  const Json& any(const std::string& key);  // null where absent
  std::optional<int64_t> integer(const std::string& key, int64_t low, int64_t high);
  // A number of tokens: -1 and what is above `high` mean as many as there may be.
  std::optional<int64_t> most(const std::string& key, int64_t low, int64_t high);
  std::optional<double> number(const std::string& key, double low, double high);
  bool boolean(const std::string& key, bool fallback);
  std::optional<std::string> text(const std::string& key);
  std::string required_text(const std::string& key);
  std::vector<Json> list(const std::string& key);          // a list's entries; anything else: itself alone
  std::vector<std::string> texts(const std::string& key);  // a text or a list of texts

  // Fields that say something to others.
  void ignore(const std::vector<std::string>& keys);
  // Refuses what nobody asked for, but for what a table's place does not know: it is said by unknown(), unless it is a
  // slip of the pen, one edit from what is known.
  void finish();
  const std::vector<std::string>& unknown() const { return unknown_; }
  void note(const Body& inner);  // what that one does not know, this one's unknown() says too

  std::string place_of(const std::string& key) const { return place_ + key; }  // its name in the whole body

  [[noreturn]] void fail(const std::string& key, const std::string& message) const;

 private:
  void sort(const std::string& key, const Json& value, const Field& field);

  const Json& object_;
  std::string place_;
  Place fields_ = kNoPlace;
  bool strict_ = true;
  std::set<std::string> asked_;
  std::set<std::string> silent_;              // as if they were not there
  std::map<std::string, std::string> given_;  // what is read: the name that it came by
  std::vector<std::string> unknown_;
};

}  // namespace cortado
