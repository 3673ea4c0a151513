#include "cortado/primitives/window_attention/plan.h"

#include <algorithm>

namespace cortado {
namespace {

// A block may hold queries of two sequences only while its span of keys stays this short: many short sequences then
// share a block, and long ones never pay for each other's keys.
constexpr int64_t kSharedSpan = 256;

// Extends the span [first, last) of keys by what query t sees.
void widen(const VisibleKeys& visible, int64_t t, int64_t& first, int64_t& last) {
  if (visible.begin[t] >= visible.end[t]) return;
  if (first >= last) {
    first = visible.begin[t];
    last = visible.end[t];
  } else {
    first = std::min(first, visible.begin[t]);
    last = std::max(last, visible.end[t]);
  }
}

// The run of queries that starts at `query`.
Block next_run(const VisibleKeys& visible, int64_t query, const PlanLimits& limits) {
  const int64_t total = static_cast<int64_t>(visible.begin.size());
  Block block;
  block.query = query;
  block.sequence = visible.sequence[query];
  int64_t first = 0, last = 0;
  int64_t t = query;
  for (; t < total && t - query < limits.queries; ++t) {
    int64_t new_first = first, new_last = last;
    widen(visible, t, new_first, new_last);
    const bool boundary = t > query && visible.sequence[t] != visible.sequence[t - 1];
    if (boundary && (limits.split_sequences || new_last - new_first > kSharedSpan)) break;
    first = new_first;
    last = new_last;
    block.some_see_nothing = block.some_see_nothing || visible.begin[t] >= visible.end[t];
  }
  block.queries = t - query;
  block.key = first;
  block.keys = last - first;
  return block;
}

// Whether `next` is `block`'s last run shifted by its length, masks included.
bool continues(const VisibleKeys& visible, const Block& block, const Block& next) {
  const int64_t shift = block.count * block.queries;
  if (next.queries != block.queries || next.keys != block.keys || next.key != block.key + shift) return false;
  if (next.sequence != block.sequence || block.some_see_nothing || next.some_see_nothing) return false;
  for (int64_t i = 0; i < next.queries; ++i) {
    if (visible.begin[next.query + i] != visible.begin[block.query + i] + shift) return false;
    if (visible.end[next.query + i] != visible.end[block.query + i] + shift) return false;
  }
  return true;
}

}  // namespace

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

std::vector<Block> plan_blocks(const VisibleKeys& visible, const PlanLimits& limits) {
  const int64_t total = static_cast<int64_t>(visible.begin.size());
  std::vector<Block> blocks;
  for (int64_t query = 0; query < total;) {
    const Block run = next_run(visible, query, limits);
    query += run.queries;
    if (limits.merge && !blocks.empty()) {
      Block& last = blocks.back();
      const bool fits = (last.count + 1) * run.queries * run.keys <= limits.scores;
      if (fits && continues(visible, last, run)) {
        ++last.count;
        continue;
      }
    }
    blocks.push_back(run);
  }
  return blocks;
}

BlockMask masked_columns(const VisibleKeys& visible, const Block& block) {
  BlockMask mask{0, block.keys};
  for (int64_t t = block.query; t < block.query + block.queries; ++t) {
    if (visible.begin[t] >= visible.end[t]) return {0, 0};
    mask.left_end = std::max(mask.left_end, visible.begin[t] - block.key);
    mask.right_begin = std::min(mask.right_begin, visible.end[t] - block.key);
  }
  if (mask.left_end >= mask.right_begin) return {0, 0};  // one region, all columns
  return mask;
}

std::vector<uint8_t> hidden_columns(const VisibleKeys& visible, const Block& block, int64_t first, int64_t columns) {
  std::vector<uint8_t> hidden(static_cast<size_t>(block.queries * columns), 1);
  for (int64_t i = 0; i < block.queries; ++i) {
    const int64_t t = block.query + i;
    const int64_t from = std::clamp<int64_t>(visible.begin[t] - block.key - first, 0, columns);
    const int64_t to = std::clamp<int64_t>(visible.end[t] - block.key - first, from, columns);
    std::fill(hidden.begin() + i * columns + from, hidden.begin() + i * columns + to, uint8_t{0});
  }
  return hidden;
}

}  // namespace cortado
