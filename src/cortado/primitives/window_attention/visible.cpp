#include "cortado/primitives/window_attention/visible.h"

#include <algorithm>

namespace cortado {

VisibleKeys visible_keys(const std::vector<int64_t>& query_bounds, const std::vector<int64_t>& key_bounds,
                         std::optional<int64_t> window, bool causal) {
  const int64_t total = query_bounds.back();
  const int64_t reach = std::min(window.value_or(INT64_MAX), total + key_bounds.back() + 1);  // no overflow below
  VisibleKeys visible;
  visible.begin.reserve(total);
  visible.end.reserve(total);
  visible.sequence.reserve(total);
  for (size_t n = 0; n + 1 < query_bounds.size(); ++n) {
    const int64_t queries = query_bounds[n + 1] - query_bounds[n];
    const int64_t keys = key_bounds[n + 1] - key_bounds[n];
    for (int64_t i = 0; i < queries; ++i) {
      const int64_t position = i + keys - queries;  // on the keys' axis; may be negative
      const int64_t end = causal ? position + 1 : (window ? position + reach : keys);
      const int64_t begin = window ? position - reach + 1 : 0;
      visible.begin.push_back(key_bounds[n] + std::clamp<int64_t>(begin, 0, keys));
      visible.end.push_back(key_bounds[n] + std::clamp<int64_t>(end, 0, keys));
      visible.sequence.push_back(static_cast<int64_t>(n));
    }
  }
  return visible;
}

}  // namespace cortado
