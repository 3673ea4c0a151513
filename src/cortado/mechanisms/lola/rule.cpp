#include "cortado/mechanisms/lola/rule.h"

#include <algorithm>

namespace cortado {

const Words<LolaScore>& lola_scores() {
  static const Words<LolaScore> words = {{"error", LolaScore::kError},
                                         {"squared", LolaScore::kSquared},
                                         {"absolute", LolaScore::kAbsolute},
                                         {"ratio", LolaScore::kRatio},
                                         {"recent", LolaScore::kRecent}};
  return words;
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
