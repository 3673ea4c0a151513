#include "cortado/mechanisms/lola/rule.h"

#include <algorithm>

#include "cortado/base/words.h"

namespace cortado {

const std::vector<std::string>& lola_scores() {
  static const std::vector<std::string> names = {"error", "squared", "absolute", "ratio", "recent"};
  return names;
}

LolaScore lola_score(std::string_view name) {
  return static_cast<LolaScore>(word_index(name, lola_scores(), "[lola] score"));
}

int64_t lola_kept(int64_t tokens, const LolaRule& rule) {
  if (rule.token_window) return std::min(tokens, *rule.token_window);
  const int64_t first = (std::max<int64_t>(tokens - 1, 0) / rule.chunk - 1) * rule.chunk;
  return tokens - std::max<int64_t>(first, 0);
}

int64_t lola_cached(int64_t tokens, const LolaRule& rule) {
  return std::min(rule.cache, tokens - lola_kept(tokens, rule));
}

}  // namespace cortado
