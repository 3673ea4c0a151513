// Which keys each query sees, and how the queries are cut into blocks: integers only, no tensors.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace cortado {

// Query t (counted along the packed axis) sees the keys begin[t] .. end[t]-1; begin[t] >= end[t]: none.
struct VisibleKeys {
  std::vector<int64_t> begin, end;
  std::vector<int64_t> sequence;  // the packed sequence that query t belongs to
};

// `query_bounds`, `key_bounds` [N+1]: the sequences on both axes; {0, T} for a dense batch.
VisibleKeys visible_keys(const std::vector<int64_t>& query_bounds, const std::vector<int64_t>& key_bounds,
                         std::optional<int64_t> window, bool causal);

// `count` runs of `queries` consecutive queries, the first starting at `query`. Run i is scored against the keys
// [key + i·queries, key + i·queries + keys), and all runs have the same pattern of visible keys.
struct Block {
  int64_t query = 0, queries = 0;
  int64_t key = 0, keys = 0;
  int64_t count = 1;
  int64_t sequence = 0;           // of its first query
  bool some_see_nothing = false;  // a query without any visible key
};

struct PlanLimits {
  int64_t queries = 64;          // in a run
  int64_t scores = 1 << 16;      // queries · keys · count of one block, where several runs are merged
  bool split_sequences = false;  // a block never holds queries of two sequences
  bool merge = true;             // several runs in one block
};

std::vector<Block> plan_blocks(const VisibleKeys& visible, const PlanLimits& limits);

// The keys of a block's first run, by column: [0, left_end) need a mask, so do [right_begin, keys); between them
// every query sees every key. mask() fills 0 where query row sees column, -inf elsewhere.
struct BlockMask {
  int64_t left_end = 0, right_begin = 0;
};
BlockMask masked_columns(const VisibleKeys& visible, const Block& block);
// The mask [queries, columns] of columns `first` .. `first + columns - 1`, row by row: 1 where hidden.
std::vector<uint8_t> hidden_columns(const VisibleKeys& visible, const Block& block, int64_t first, int64_t columns);

}  // namespace cortado
