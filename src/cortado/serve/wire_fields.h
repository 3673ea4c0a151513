// The table of all fields of request bodies: which are read, which have no effect, and which are refused.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cortado/base/json.h"

namespace cortado {

// The kinds of objects with fields; a row of the table may belong to several.
enum Place : unsigned {
  kNoPlace = 0,
  kCompletion = 1u << 0,     // /v1/completions
  kChat = 1u << 1,           // /v1/chat/completions
  kResponse = 1u << 2,       // /v1/responses
  kMessage = 1u << 3,        // an entry of a chat's "messages"
  kItem = 1u << 4,           // an entry of a response's "input"
  kPart = 1u << 5,           // an entry of a message's "content"
  kStreamOptions = 1u << 6,  // "stream_options"
  kText = 1u << 7,           // a response's "text"
  kTokenize = 1u << 8,
  kDetokenize = 1u << 9,
  // Objects in which only values without effect are accepted.
  kReasoning = 1u << 10,
  kCacheOptions = 1u << 12,
  kOllama = 1u << 13,
  kEmbedding = 1u << 14,  // /v1/embeddings
};

// What the server does with a field.
enum class Use {
  kDone,     // read; the row's values count as absent
  kSame,     // an alias of a field that is read
  kAny,      // has no effect, whatever its value
  kNeutral,  // has no effect with one of the row's values; all others are refused
};

// A row of the table.
struct Field {
  const char* name;
  unsigned places;
  Use use;
  const char* values = "[]";  // a JSON list; null is always included
  // kSame: the name that is read. kNeutral: if the field of this name is "none", this one has no effect.
  const char* other = "";
  Place inner = kNoPlace;  // an object that is neutral if all of its fields are
  bool strict = false;     // also accepted with `serve --strict`
};

// Returns the whole table.
const std::vector<Field>& all_fields();

// Returns the row of a field at that place; null if there is none.
const Field* find_field(const std::string& name, unsigned place);

// Whether a value has no effect. If it has, `why` (if given) gets the end of an error message with the allowed values.
// `strict`: only empty values, such as null and an empty list, are accepted.
bool is_neutral(const Field& field, const Json& value, bool strict = false, std::string* why = nullptr);

// Returns the known name that `word` is one edit away from, as a probable typo. Names of fewer than four letters are
// not considered.
std::optional<std::string> slip_of(const std::string& word, const std::vector<std::string>& known);

// Returns the names of the fields that are accepted at that place, with `strict` as by `serve --strict`.
std::vector<std::string> field_names(unsigned place, bool strict);

}  // namespace cortado
