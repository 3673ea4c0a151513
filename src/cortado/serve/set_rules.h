// Lists of different values as rules of a grammar.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "cortado/base/json.h"

namespace cortado {

// Rules of XGrammar's EBNF, the first of which has this name: lists of some of these values, from so many to so many, none
// of them twice. Of few in any order, of more in this one. InputError: there are not so many.
std::string rules_of_set(const std::string& name, const Json& values, std::pair<int64_t, int64_t> lengths);

}  // namespace cortado
