// Enforces what no grammar can express: a list repeats no item, and an object repeats no key. Without torch.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cortado/base/json.h"

namespace cortado {

// Parses an answer's JSON byte by byte.
class NoRepeats {
 public:
  // `schema` comes from enforced_schema: lists with "uniqueItems" must not repeat items; objects never repeat keys.
  explicit NoRepeats(std::shared_ptr<const Json> schema);

  // Returns false if these bytes complete a repeated item or key; the object must not be used afterwards.
  bool push(std::string_view bytes);
  // Whether the next bytes may complete an item or a key that could be a repetition.
  bool matters() const { return !frames_.empty(); }

 private:
  // The possible schemas of a value, with references and alternatives resolved.
  using Schemas = std::vector<const Json*>;
  struct Frame {
    bool object = false, distinct = false, in_key = false;
    Schemas schemas;
    std::vector<Json> found = {};  // items of a list or keys of an object
    std::string key = {}, value = {};
    size_t index = 0;
    bool complete = false;  // whether `value` is complete
  };

  Schemas meant_by(const Schemas& schemas) const;
  void collect(const Json& schema, Schemas& found, int depth) const;
  Schemas inner(const Frame& frame) const;
  void open(bool object);
  bool take(char c);
  bool may_begin(char letter) const;
  bool end_string();
  bool end_value();

  std::shared_ptr<const Json> schema_;
  std::vector<Frame> frames_;
  bool in_string_ = false, escaped_ = false;
};

}  // namespace cortado
