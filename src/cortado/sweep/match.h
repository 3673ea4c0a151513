// Sizes that make models equal in what they keep or what they learn.
#pragma once

#include <string>

#include "cortado/base/json.h"

namespace cortado {

enum class Match { kState, kParameters };

// Of a config: bytes of the state of one sequence of the task's length (or "training.context"), float32, all layers,
// convolutions included, growing caches at that length; or parameters, the embedding's of two tokens where the
// vocabulary is not known yet.
int64_t measured_size(Match match, const Json& config, const std::string& name);

// `sizes`: {"mixer.window": [8, 16, 32]}, one setting and what it may be. That of them with which the config comes
// nearest to the target in ratio. InputError: not one setting with a list of values, or a config that can't be.
Json matched_size(Match match, const Json& config, const Json& sizes, int64_t target, const std::string& place);

}  // namespace cortado
