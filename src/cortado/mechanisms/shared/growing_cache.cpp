#include "cortado/mechanisms/shared/growing_cache.h"

#include <limits>

namespace cortado {
namespace {

// Enlarges `cache` to at least `places` tokens, in whole blocks. Keeps its type, which may be shorter than the keys'.
Tensor with_room(const Tensor& cache, int64_t used, int64_t places) {
  if (cache.size(1) >= places) return cache;
  const int64_t blocks = (places + kCacheBlock - 1) / kCacheBlock;
  Tensor wider = at::empty({cache.size(0), blocks * kCacheBlock, cache.size(2), cache.size(3)}, cache.options());
  wider.narrow(1, 0, used).copy_(cache.narrow(1, 0, used));
  wider.narrow(1, used, wider.size(1) - used).zero_();
  return wider;
}

}  // namespace

void declare_cache(StateLayout& layout, const CacheNames& names, const std::vector<int64_t>& shape) {
  layout.growing(names.keys, shape, kCacheBlock, "used");
  if (names.values) layout.growing(names.values, shape, kCacheBlock, "used");
  layout.position();
  layout.counter("used");
}

JoinedKeys advance_cache(SequenceState& state, const CacheNames& names, const Tensor& k, const Tensor& v,
                         const Batch& batch) {
  Tensor &keys = state.at(names.keys), &used_places = state.at("used");
  Tensor none = keys.narrow(-1, 0, 0);
  Tensor& values = names.values ? state.at(names.values) : none;
  const int64_t used = used_places.size(0) ? used_places.select(0, 0).item<int64_t>() : 0;
  const PastKeys past = drop_full_lengths({keys.narrow(1, 0, used), values.narrow(1, 0, used), state.at("position")});
  const bool differentiated = at::GradMode::is_enabled() && (k.requires_grad() || v.requires_grad() ||
                                                             keys.requires_grad() || values.requires_grad());
  if (batch.cu_seqlens || differentiated) {
    const JoinedKeys joined = join_past(past, k, v, batch.cu_seqlens);
    const PastKeys all = keep_last(joined, std::numeric_limits<int64_t>::max());
    keys = *all.k;
    values = *all.v;
    used_places = at::full_like(used_places, keys.size(1));
    return joined;
  }
  // Decoding and dense prefill: writes into the spare memory, without copying the cache.
  const int64_t total = used + k.size(1);
  keys = with_room(keys, used, total);
  values = with_room(values, used, total);
  keys.narrow(1, used, k.size(1)).copy_(k);
  values.narrow(1, used, v.size(1)).copy_(v);
  used_places = used_places + k.size(1);
  OptionalTensor first;
  if (past.length) first = used - *past.length;
  return {keys.narrow(1, 0, total), values.narrow(1, 0, total), first, std::nullopt};
}

}  // namespace cortado
