// What no grammar can say of an answer: that a list repeats no item, and an object no key. No torch.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cortado/base/json.h"

namespace cortado {

// Follows the JSON of an answer, byte by byte.
class NoRepeats {
 public:
  // A schema as held_schema makes them: lists with "uniqueItems" repeat nothing, and no object does.
  explicit NoRepeats(std::shared_ptr<const Json> schema);

  // False: an item or a key has come again with these bytes, and nothing more may be asked.
  bool push(std::string_view bytes);
  // Whether they may complete one that is not to come again.
  bool matters() const { return !frames_.empty(); }

 private:
  using Schemas = std::vector<const Json*>;  // that a value may be of: none of them is a reference, or a choice
  struct Frame {
    bool object = false, distinct = false, in_key = false;
    Schemas schemas;
    std::vector<Json> found = {};  // items, or keys
    std::string key = {}, value = {};
    size_t index = 0;
    bool complete = false;  // the value
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
