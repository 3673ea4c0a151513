#include "cortado/mechanisms/lola/rule.h"

#include <algorithm>

#include "cortado/base/error.h"

namespace cortado {

LolaScore lola_score(std::string_view name) {
  if (name == "error") return LolaScore::kError;
  if (name == "squared") return LolaScore::kSquared;
  if (name == "absolute") return LolaScore::kAbsolute;
  if (name == "ratio") return LolaScore::kRatio;
  fail_input_if(name != "recent",
                "[lola] score must be \"error\", \"squared\", \"absolute\", \"ratio\" or \"recent\", got \"", name,
                "\"");
  return LolaScore::kRecent;
}

int64_t lola_kept(int64_t tokens, const LolaRule& rule) {
  const int64_t first = (std::max<int64_t>(tokens - 1, 0) / rule.chunk - 1) * rule.chunk;
  return tokens - std::max<int64_t>(first, 0);
}

int64_t lola_cached(int64_t tokens, const LolaRule& rule) {
  return std::min(rule.cache, tokens - lola_kept(tokens, rule));
}

}  // namespace cortado
