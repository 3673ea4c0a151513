// Packed sequences for mixers whose memories are updated chunk by chunk.
#pragma once

#include <vector>

#include "cortado/nn/state_layout.h"

namespace cortado {

// Reads the sequences one after the other, because their chunks end at different positions. `read(row, first, count)`
// reads tokens first..first+count-1 after a state of one row and updates all of it except the position. Returns the
// results of the calls in order.
template <typename Read>
auto read_one_by_one(SequenceState& state, const StateLayout& layout, const Tensor& cu_seqlens, const Read& read) {
  const Tensor bounds = cu_seqlens.to(at::kCPU, at::kLong);
  const Tensor position = state.at(StateLayout::kPosition);
  std::vector<SequenceState> rows;
  std::vector<decltype(read(state, int64_t{}, int64_t{}))> results;
  for (int64_t n = 0; n < state.rows(); ++n) {
    const int64_t first = bounds[n].item<int64_t>(), count = bounds[n + 1].item<int64_t>() - first;
    rows.push_back(layout.join({state.row(n)}));
    results.push_back(read(rows.back(), first, count));
    rows.back().at(StateLayout::kPosition) += count;  // join() needs it to align the rows
  }
  state = layout.join(rows);
  state.at(StateLayout::kPosition) = position;
  return results;
}

}  // namespace cortado
