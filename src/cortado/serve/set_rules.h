// Grammar rules for lists of different values.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "cortado/base/json.h"

namespace cortado {

// Returns rules of XGrammar's EBNF, the first of which has the name `name`: lists of lengths.first to lengths.second of
// the values without repetition. Few values may come in any order, many only in the given one. Throws InputError if
// there are too few values.
std::string rules_of_set(const std::string& name, const Json& values, std::pair<int64_t, int64_t> lengths);

}  // namespace cortado
