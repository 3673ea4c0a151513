// The fields of a request's body, of which each is asked for by its type.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cortado/base/json.h"

namespace cortado {

// Null counts as absent. WireError (400, naming the field) for a wrong type or range. Once everything has been asked
// for, finish() refuses what nobody did.
class Body {
 public:
  // `place`: in front of the fields' names, "messages[0]."; WireError unless `object` is an object.
  explicit Body(const Json& object, std::string place = "");

  bool has(const std::string& key);
  const Json& any(const std::string& key);  // null where absent
  std::optional<int64_t> integer(const std::string& key, int64_t low, int64_t high);
  std::optional<double> number(const std::string& key, double low, double high);
  bool boolean(const std::string& key, bool fallback);
  std::optional<std::string> text(const std::string& key);
  std::string required_text(const std::string& key);
  std::vector<std::string> texts(const std::string& key);  // a text or a list of texts

  // Says what is not there: fields that would change the answer.
  void refuse(const std::vector<std::string>& keys);
  // Fields that say something to others.
  void ignore(const std::vector<std::string>& keys);
  void finish() const;

  std::string place_of(const std::string& key) const { return place_ + key; }  // its name in the whole body

  [[noreturn]] void fail(const std::string& key, const std::string& message) const;

 private:
  const Json& object_;
  std::string place_;
  std::set<std::string> asked_;
};

}  // namespace cortado
