// The cache of attention to all earlier tokens, which grows by a block at a time.
#pragma once

#include "cortado/nn/batch.h"
#include "cortado/nn/state_layout.h"
#include "cortado/primitives/window_attention/past.h"

namespace cortado {

inline constexpr int64_t kCacheBlock = 256;  // tokens

// The names of a cache's tensors in the state. No values: they follow from the keys, and advance_cache()'s v has no
// channels.
struct CacheNames {
  const char *keys, *values = nullptr;
};

// Declares a cache [rows, capacity, shape...], where capacity is a multiple of kCacheBlock; "position"; and "used", the
// number of places in use, equal in all rows. A row with fewer tokens than that has them right-aligned.
void declare_cache(StateLayout& layout, const CacheNames& names, const std::vector<int64_t>& shape);

// Appends k and v [B,T,...] to the cache, and returns all of its keys and values. The cache may have a shorter type than
// k (LanguageModel::set_cache_type).
JoinedKeys advance_cache(SequenceState& state, const CacheNames& names, const Tensor& k, const Tensor& v,
                         const Batch& batch);

}  // namespace cortado
