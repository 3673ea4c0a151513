// Which fields the bodies of calls have: what is read, what changes nothing, and what is refused. One table for all.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cortado/base/json.h"

namespace cortado {

// An object that has fields; a row of the table is of one or several of them.
enum Place : unsigned {
  kNoPlace = 0,
  kCompletion = 1u << 0,     // /v1/completions
  kChat = 1u << 1,           // /v1/chat/completions
  kResponse = 1u << 2,       // /v1/responses
  kMessage = 1u << 3,        // of a chat's "messages"
  kItem = 1u << 4,           // of a response's "input"
  kPart = 1u << 5,           // of a message's "content"
  kStreamOptions = 1u << 6,  // "stream_options"
  kText = 1u << 7,           // a response's "text"
  kTokenize = 1u << 8,
  kDetokenize = 1u << 9,
  // Objects that can only say what changes nothing.
  kReasoning = 1u << 10,
  kTemplate = 1u << 11,
  kCacheOptions = 1u << 12,
  kOllama = 1u << 13,
};

enum class Use {
  kDone,     // read; the values of its row are as none
  kSame,     // another name of a field that is read
  kAny,      // changes nothing, whatever it says
  kNeutral,  // changes nothing where it has one of the values of its row: anything else is refused
};

struct Field {
  const char* name;
  unsigned places;
  Use use;
  const char* values = "[]";  // a JSON list; null is always one of them
  const char* other = "";  // kSame: the name that is read; kNeutral: where that field is "none", this one says nothing
  Place inner = kNoPlace;  // an object that is neutral where all of its own fields are
  bool strict = false;     // known to `serve --strict` too
};

const std::vector<Field>& all_fields();

// The row of a field at that place; null: there is none.
const Field* find_field(const std::string& name, unsigned place);

// Whether a value changes nothing. If not, and `why` is given: what it might be, for an error's end. `strict`: only what
// is nothing, such as null and an empty list.
bool is_neutral(const Field& field, const Json& value, bool strict = false, std::string* why = nullptr);

// A known name of that place that `word` is one edit away from: a slip. Names of less than four letters have none.
std::optional<std::string> slip_of(const std::string& word, const std::vector<std::string>& known);

std::vector<std::string> field_names(unsigned place, bool strict);

}  // namespace cortado
