// Computes which keys each query sees. Integers only, no tensors.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace cortado {

// Query t (counted along the packed axis) sees keys begin[t] .. end[t]-1; none if begin[t] >= end[t].
struct VisibleKeys {
  std::vector<int64_t> begin, end;
  std::vector<int64_t> sequence;  // query t's packed sequence
};

// `query_bounds`, `key_bounds` [N+1]: the sequences on either axis; {0, T} for a dense batch.
VisibleKeys visible_keys(const std::vector<int64_t>& query_bounds, const std::vector<int64_t>& key_bounds,
                         std::optional<int64_t> window, bool causal);

}  // namespace cortado
