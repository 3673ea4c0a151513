#include "cortado/tasks/regbench/predictors.h"

#include <algorithm>
#include <array>

namespace cortado {
namespace {

using Counts = std::array<int64_t, kSymbols>;

int64_t most(const Counts& counts) { return std::max_element(counts.begin(), counts.end()) - counts.begin(); }
bool none(const Counts& counts) { return *std::max_element(counts.begin(), counts.end()) == 0; }

// What has followed the last `context` symbols before; a separator does not count.
Counts followers(std::span<const int64_t> read, size_t context) {
  Counts counts{};
  if (read.size() < context) return counts;
  const auto last = read.last(context);
  for (size_t i = context; i < read.size(); ++i) {
    if (read[i] != kSeparator && std::equal(last.begin(), last.end(), read.begin() + int64_t(i - context))) {
      ++counts[size_t(read[i])];
    }
  }
  return counts;
}

// The longest context that has occurred decides.
int64_t n_gram(std::span<const int64_t> read, size_t n) {
  for (size_t context = n - 1; context > 0; --context) {
    const Counts counts = followers(read, context);
    if (!none(counts)) return most(counts);
  }
  return most(followers(read, 0));
}

int64_t oracle(const Dfa& dfa, std::span<const int64_t> read) {
  const int64_t now = state_after(dfa, read);
  int64_t state = 0;
  Counts seen{};
  for (const int64_t symbol : read) {
    if (symbol != kSeparator && state == now) ++seen[size_t(symbol)];
    state = symbol == kSeparator ? 0 : dfa.step(state, symbol);
  }
  return none(seen) ? n_gram(read, 1) : most(seen);
}

}  // namespace

int64_t state_after(const Dfa& dfa, std::span<const int64_t> read) {
  int64_t state = 0;
  for (const int64_t symbol : read) state = symbol == kSeparator ? 0 : dfa.step(state, symbol);
  return state;
}

const std::vector<std::pair<std::string, Predictor>>& regbench_predictors() {
  static const std::vector<std::pair<std::string, Predictor>> all = [] {
    std::vector<std::pair<std::string, Predictor>> list;
    list.emplace_back("uniform", [](const Dfa&, auto read) { return 1 + int64_t(read.size()) % kLetters; });
    list.emplace_back("most_frequent", [](const Dfa&, auto read) { return n_gram(read, 1); });
    for (size_t n = 2; n <= 4; ++n) {
      list.emplace_back(std::to_string(n) + "_gram", [n](const Dfa&, auto read) { return n_gram(read, n); });
    }
    list.emplace_back("oracle", oracle);
    return list;
  }();
  return all;
}

}  // namespace cortado
