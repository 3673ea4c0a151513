// What can be said of the next letter without a model: the baselines of the paper.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cortado/tasks/regbench/dfa.h"

namespace cortado {

// The letter that follows `read`.
using Predictor = std::function<int64_t(const Dfa& dfa, std::span<const int64_t> read)>;

// "uniform" (the letters in turn), "most_frequent" so far, "2_gram" .. "4_gram" with back-off, "oracle", which knows the
// automaton's state but only transitions that have been seen.
const std::vector<std::pair<std::string, Predictor>>& regbench_predictors();

// The state after what was read since the last separator.
int64_t state_after(const Dfa& dfa, std::span<const int64_t> read);

}  // namespace cortado
