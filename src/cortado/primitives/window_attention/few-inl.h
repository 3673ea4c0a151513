// A few queries, as in decoding: keys and values are read as they lie, once for all heads that share them.
// Part of kernel.cpp, compiled once for each instruction set (hence the unusual guard).
#if defined(CORTADO_WINDOW_ATTENTION_FEW_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef CORTADO_WINDOW_ATTENTION_FEW_INL_H
#undef CORTADO_WINDOW_ATTENTION_FEW_INL_H
#else
#define CORTADO_WINDOW_ATTENTION_FEW_INL_H
#endif

#include <hwy/cache_control.h>
#include <math.h>

#include "cortado/primitives/window_attention/visible-inl.h"

HWY_BEFORE_NAMESPACE();
namespace cortado::window {
namespace HWY_NAMESPACE {
namespace {

// What one query of one head has gathered: o, not yet divided, and maximum and denominator.
struct FewReader {
  Range range;
  const float* q;
  float *o, maximum, sum;
};

// 16 keys and their values, rows `row` apart.
struct FewKeys {
  int64_t key, count;
  const float *k, *v;
  int64_t k_row, v_row;
};

// Keys that are asked of memory before they are read: of a step's caches nothing is in this core's.
constexpr int64_t kAhead = 2 * kTokens;
void prefetch_rows(const float* from, int64_t row, int64_t size) {
  for (int64_t i = 0; i < kTokens; ++i) prefetch_row(from + i * row, size);
}

// Σ q k of the 16 keys, capped, -inf outside of `seen`.
void few_scores(const AttentionKernel& p, const FewReader& reader, const FewKeys& keys, Range seen, float* scores) {
  const Floats d;
  fill(scores, kTokens, 0);
  for (int64_t first = 0; first < keys.count; first += 4) {
    Vec sums[4];
    for (int64_t i = 0; i < 4; ++i) {
      sums[i] = hn::Zero(d);
      if (first + i >= keys.count) continue;
      const float* k = keys.k + (first + i) * keys.k_row;
      for (int64_t c = 0; c < p.key_size; c += kLanes) {
        sums[i] = hn::MulAdd(hn::Load(d, reader.q + c), hn::Load(d, k + c), sums[i]);
      }
    }
    add_sums_of_four(d, sums, scores + first);
  }
  for (int64_t j = 0; p.softcap > 0 && j < kTokens; j += kLanes) {
    hn::Store(hn::Mul(hn::Set(d, p.softcap), tanh_of(d, hn::Load(d, scores + j))), d, scores + j);
  }
  for (int64_t j = 0; j < kTokens; ++j) {
    if (j < seen.begin || j >= seen.end) scores[j] = kMinusInfinity;
  }
}

// The scores become weights relative to a maximum that may have grown; what was gathered is scaled to it.
void few_gather(const AttentionKernel& p, FewReader& reader, const FewKeys& keys, Range seen, float* scores) {
  const Floats d;
  float largest = reader.maximum;
  for (int64_t j = seen.begin; j < seen.end; ++j) largest = scores[j] > largest ? scores[j] : largest;
  const Vec top = hn::Set(d, largest);
  const float kept = hn::GetLane(exp_of(d, hn::Sub(hn::Set(d, reader.maximum), top)));
  Vec sum = hn::Zero(d);
  for (int64_t j = 0; j < kTokens; j += kLanes) {
    const Vec weight = exp_of(d, hn::Sub(hn::Load(d, scores + j), top));
    sum = hn::Add(sum, weight);
    hn::Store(weight, d, scores + j);
  }
  reader.sum = reader.sum * kept + hn::GetLane(hn::SumOfLanes(d, sum));
  reader.maximum = largest;
  for (int64_t c = 0; c < p.value_size; c += kLanes) {
    Vec o = hn::Mul(hn::Load(d, reader.o + c), hn::Set(d, kept));
    for (int64_t j = seen.begin; j < seen.end; ++j) {
      o = hn::MulAdd(hn::Set(d, scores[j]), hn::Load(d, keys.v + j * keys.v_row + c), o);
    }
    hn::Store(o, d, reader.o + c);
  }
}

// The queries of a group's heads, one after the other; their common range of keys goes to `all`.
FewReader* few_readers(const AttentionKernel& p, int64_t b, int64_t group, Scratch& scratch, Range& all) {
  const int64_t repeat = p.heads / p.groups, kw = round_up(p.key_size, kLanes), vw = round_up(p.value_size, kLanes);
  const int64_t count = p.queries * repeat;
  const int64_t floats = (count * static_cast<int64_t>(sizeof(FewReader)) + 3) / 4;
  auto* readers = reinterpret_cast<FewReader*>(scratch.take(floats));
  float *q = scratch.take(repeat * kTokens * kw), *o = scratch.take(count * vw);
  fill(o, count * vw, 0);
  for (int64_t r = 0; r < repeat; ++r) {
    read_tile(p.q, {b, group * repeat + r, 0, 1, p.queries}, 0, p.key_size, query_factor(p), q + r * kTokens * kw, kw);
    for (int64_t t = 0; t < p.queries; ++t) {
      const int64_t i = r * p.queries + t;
      readers[i] = {visible(p, b, t), q + (r * kTokens + t) * kw, o + i * vw, kMinusInfinity, 0};
      all.add(readers[i].range);
    }
  }
  return readers;
}

void few_finish(const AttentionKernel& p, int64_t b, int64_t head, int64_t t, const FewReader& reader) {
  const Floats d;
  const bool none = reader.sum == 0;
  const float inverse = none ? 0 : 1 / reader.sum;
  for (int64_t c = 0; c < p.value_size; c += kLanes) {
    hn::Store(hn::Mul(hn::Load(d, reader.o + c), hn::Set(d, inverse)), d, reader.o + c);
  }
  write_tile(reader.o, round_up(p.value_size, kLanes), p.o, {b, head, t, 1, 1}, 0, p.value_size);
  const int64_t row = (b * p.queries + t) * p.heads + head;
  p.row_max[row] = reader.maximum;
  p.denominator[row] = none ? 1 : reader.sum;
  p.lse[row] = none ? kMinusInfinity : reader.maximum + logf(reader.sum);
}

// At most kTokens queries of all heads of one group.
void few_task(const AttentionKernel& p, int64_t task) {
  const FlushDenormals guard;
  Scratch scratch;
  const int64_t b = task / p.groups, group = task % p.groups, repeat = p.heads / p.groups;
  const int64_t kw = round_up(p.key_size, kLanes), vw = round_up(p.value_size, kLanes);
  Range all{0, 0};
  FewReader* readers = few_readers(p, b, group, scratch, all);
  float *k = scratch.take(kTokens * kw), *v = scratch.take(kTokens * vw), *scores = scratch.take(kTokens);
  for (int64_t key = all.begin; key < all.end; key += kTokens) {
    const Stretch at{b, group, key, 1, smaller(kTokens, all.end - key)};
    const float *k_there = tile_in_place(p.k, at, 0, p.key_size, kw),
                *v_there = tile_in_place(p.v, at, 0, p.value_size, vw);
    if (k_there) prefetch_rows(k_there + kAhead * p.k.token, p.k.token, p.key_size);
    if (v_there) prefetch_rows(v_there + kAhead * p.v.token, p.v.token, p.value_size);
    if (!k_there) read_tile(p.k, at, 0, p.key_size, 1, k, kw);
    if (!v_there) read_tile(p.v, at, 0, p.value_size, 1, v, vw);
    const FewKeys keys{key,
                       at.tokens,
                       k_there ? k_there : k,
                       v_there ? v_there : v,
                       k_there ? p.k.token : kw,
                       v_there ? p.v.token : vw};
    for (int64_t i = 0; i < p.queries * repeat; ++i) {
      const Range seen{larger(readers[i].range.begin - key, 0), smaller(readers[i].range.end - key, kTokens)};
      if (seen.empty()) continue;
      few_scores(p, readers[i], keys, seen, scores);
      few_gather(p, readers[i], keys, seen, scores);
    }
  }
  for (int64_t i = 0; i < p.queries * repeat; ++i) {
    few_finish(p, b, group * repeat + i / p.queries, i % p.queries, readers[i]);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace cortado::window
HWY_AFTER_NAMESPACE();

#endif
