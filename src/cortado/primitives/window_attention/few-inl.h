// A few queries, as in decoding: keys and values are read in place, once for all heads that share them. Part of
// kernel.cpp, compiled once per instruction set (hence the unusual guard).
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

// The running result of one query of one head: o, not yet divided by the denominator, maximum and denominator.
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

// Keys to prefetch: a decoding step's caches are not in this core's caches.
constexpr int64_t kAhead = 2 * kTokens;
void prefetch_rows(const float* from, int64_t row, int64_t size) {
  for (int64_t i = 0; i < kTokens; ++i) prefetch_row(from + i * row, size);
}

// Computes Σ q k of the 16 keys with kReaders queries, [kReaders, 16]; a key's numbers are loaded once for all of them.
template <int kReaders>
void few_products(const AttentionKernel& p, const FewReader* readers, const FewKeys& keys, float* scores) {
  const Floats d;
  fill(scores, kReaders * kTokens, 0);
  for (int64_t first = 0; first < keys.count; first += 4) {
    const float* k[4];  // beyond the last key that key is repeated; no query sees it
    for (int64_t i = 0; i < 4; ++i) k[i] = keys.k + smaller(first + i, keys.count - 1) * keys.k_row;
    Vec sums[kReaders][4];
    for (auto& of_reader : sums) {
      for (Vec& sum : of_reader) sum = hn::Zero(d);
    }
    for (int64_t c = 0; c < p.key_size; c += kLanes) {
      Vec key[4];
      for (int i = 0; i < 4; ++i) key[i] = hn::Load(d, k[i] + c);
      for (int r = 0; r < kReaders; ++r) {
        const Vec q = hn::Load(d, readers[r].q + c);
        for (int i = 0; i < 4; ++i) sums[r][i] = hn::MulAdd(q, key[i], sums[r][i]);
      }
    }
    for (int r = 0; r < kReaders; ++r) add_sums_of_four(d, sums[r], scores + r * kTokens + first);
  }
}

// Caps the scores, and sets them to -inf outside of `seen`.
void few_mask(const AttentionKernel& p, Range seen, float* scores) {
  const Floats d;
  for (int64_t j = 0; p.softcap > 0 && j < kTokens; j += kLanes) {
    hn::Store(hn::Mul(hn::Set(d, p.softcap), tanh_of(d, hn::Load(d, scores + j))), d, scores + j);
  }
  for (int64_t j = 0; j < kTokens; ++j) {
    if (j < seen.begin || j >= seen.end) scores[j] = kMinusInfinity;
  }
}

// o = kept o + Σ weight v over the visible keys, for kVecs vectors of values, whose sums run in parallel.
template <int kVecs>
HWY_INLINE void few_add(const FewKeys& keys, Range seen, const float* weights, float kept, int64_t column, float* o) {
  const Floats d;
  Vec sum[kVecs];
  for (int x = 0; x < kVecs; ++x) sum[x] = hn::Mul(hn::Load(d, o + column + x * kLanes), hn::Set(d, kept));
  for (int64_t j = seen.begin; j < seen.end; ++j) {
    const Vec weight = hn::Set(d, weights[j]);
    const float* v = keys.v + j * keys.v_row + column;
    for (int x = 0; x < kVecs; ++x) sum[x] = hn::MulAdd(weight, hn::Load(d, v + x * kLanes), sum[x]);
  }
  for (int x = 0; x < kVecs; ++x) hn::Store(sum[x], d, o + column + x * kLanes);
}

// Turns scores into weights relative to a maximum that may rise; rescales the running result to it.
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
  const int64_t width = round_up(p.value_size, kLanes);
  int64_t column = 0;
  for (; column + 4 * kLanes <= width; column += 4 * kLanes) few_add<4>(keys, seen, scores, kept, column, reader.o);
  for (; column < width; column += kLanes) few_add<1>(keys, seen, scores, kept, column, reader.o);
}

// Returns the queries of the heads of groups [first, last), one group and head after the other. Writes the union of
// their key ranges to `all`.
FewReader* few_readers(const AttentionKernel& p, int64_t b, Range groups, Scratch& scratch, Range& all) {
  const int64_t repeat = p.heads / p.groups, kw = round_up(p.key_size, kLanes), vw = round_up(p.value_size, kLanes);
  const int64_t heads = groups.size() * repeat, count = p.queries * heads;
  const int64_t floats = (count * static_cast<int64_t>(sizeof(FewReader)) + 3) / 4;
  auto* readers = reinterpret_cast<FewReader*>(scratch.take(floats));
  float *q = scratch.take(heads * kTokens * kw), *o = scratch.take(count * vw);
  fill(o, count * vw, 0);
  for (int64_t h = 0; h < heads; ++h) {
    const int64_t head = groups.begin * repeat + h;
    read_tile(p.q, {b, head, 0, 1, p.queries}, 0, p.key_size, query_factor(p), q + h * kTokens * kw, kw);
    for (int64_t t = 0; t < p.queries; ++t) {
      const int64_t i = h * p.queries + t;
      readers[i] = {visible(p, b, t), q + (h * kTokens + t) * kw, o + i * vw, kMinusInfinity, 0};
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

// All queries against 16 keys, two queries at a time.
void few_meet(const AttentionKernel& p, FewReader* readers, int64_t count, const FewKeys& keys, float* scores) {
  for (int64_t i = 0; i < count; i += 2) {
    const bool two = i + 1 < count;
    two ? few_products<2>(p, readers + i, keys, scores) : few_products<1>(p, readers + i, keys, scores);
    for (int64_t r = 0; r < 1 + two; ++r) {
      FewReader& reader = readers[i + r];
      const Range seen{larger(reader.range.begin - keys.key, 0), smaller(reader.range.end - keys.key, keys.count)};
      if (seen.empty()) continue;
      few_mask(p, seen, scores + r * kTokens);
      few_gather(p, reader, keys, seen, scores + r * kTokens);
    }
  }
}

// Reads keys `span` of `groups`, tile by tile, for those groups' readers.
void few_read(const AttentionKernel& p, int64_t b, Range groups, Range span, FewReader* readers, Scratch& scratch) {
  const int64_t kw = round_up(p.key_size, kLanes), vw = round_up(p.value_size, kLanes);
  const int64_t of_group = p.queries * (p.heads / p.groups);
  float *k = scratch.take(kTokens * kw), *v = scratch.take(kTokens * vw), *scores = scratch.take(2 * kTokens);
  for (int64_t key = span.begin; key < span.end; key += kTokens) {
    for (int64_t group = groups.begin; group < groups.end; ++group) {
      const Stretch at{b, group, key, 1, smaller(kTokens, span.end - key)};
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
      few_meet(p, readers + (group - groups.begin) * of_group, of_group, keys, scores);
    }
  }
}

// One task per group: all of its keys.
void few_task(const AttentionKernel& p, int64_t task) {
  const FlushDenormals guard;
  Scratch scratch;
  const int64_t b = task / p.groups, group = task % p.groups, repeat = p.heads / p.groups;
  Range all{0, 0};
  FewReader* readers = few_readers(p, b, {group, group + 1}, scratch, all);
  few_read(p, b, {group, group + 1}, all, readers, scratch);
  for (int64_t i = 0; i < p.queries * repeat; ++i) {
    few_finish(p, b, group * repeat + i / p.queries, i % p.queries, readers[i]);
  }
}

// One task per part of the keys: all groups, in memory order. Writes the readers' results to the call's parts.
void few_part_task(const AttentionKernel& p, int64_t task) {
  const FlushDenormals guard;
  Scratch scratch;
  const int64_t parts = few_parts(p), b = task / parts, first = task % parts * kFewPart, width = few_row(p) - kTokens;
  Range all{0, 0};
  FewReader* readers = few_readers(p, b, {0, p.groups}, scratch, all);
  const Range span{larger(all.begin, first), smaller(all.end, first + kFewPart)};
  few_read(p, b, {0, p.groups}, span, readers, scratch);
  for (int64_t i = 0; i < p.queries * p.heads; ++i) {
    float* to = p.parts + (task * p.queries * p.heads + i) * few_row(p);
    copy(readers[i].o, round_up(p.value_size, kLanes), to);
    to[width] = readers[i].maximum;
    to[width + 1] = readers[i].sum;
  }
}

// Joins the parts of one query of one head.
void few_join_task(const AttentionKernel& p, int64_t task) {
  const Floats d;
  Scratch scratch;
  const int64_t parts = few_parts(p), count = p.queries * p.heads, b = task / count, i = task % count;
  const int64_t width = few_row(p) - kTokens, values = round_up(p.value_size, kLanes);
  const auto row = [&](int64_t part) { return p.parts + ((b * parts + part) * count + i) * few_row(p); };
  FewReader reader{{0, 0}, nullptr, scratch.take(values), kMinusInfinity, 0};
  for (int64_t part = 0; part < parts; ++part) {
    if (row(part)[width + 1] != 0 && row(part)[width] > reader.maximum) reader.maximum = row(part)[width];
  }
  fill(reader.o, values, 0);
  for (int64_t part = 0; part < parts; ++part) {
    const float *from = row(part), sum = from[width + 1];
    if (sum == 0) continue;  // no key was seen there
    const Vec share = exp_of(d, hn::Set(d, from[width] - reader.maximum));
    reader.sum += sum * hn::GetLane(share);
    for (int64_t c = 0; c < values; c += kLanes) {
      hn::Store(hn::MulAdd(share, hn::Load(d, from + c), hn::Load(d, reader.o + c)), d, reader.o + c);
    }
  }
  few_finish(p, b, i / p.queries, i % p.queries, reader);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace cortado::window
HWY_AFTER_NAMESPACE();

#endif
