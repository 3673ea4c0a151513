// Splits a scan over time among threads when it has fewer streams than threads. A stream is one head of one row.
//
// Time is cut into segments. A first pass computes the boundary values that segments need from each other: the state at
// each segment's start and, in a backward, the gradient of the state at its end. This pass is parallel over independent
// blocks of the state's rows or columns. A second pass then computes every segment on its own. All operations happen in
// the order of one thread's, so that the results are bit-identical.
#pragma once

#include <string.h>

#include "cortado/primitives/kernels/kernel.h"
#include "cortado/primitives/kernels/scratch.h"

namespace cortado::kernels {
namespace {  // internal linkage: included by units compiled for other instruction sets

// A segment is kSegment tiles of 16 tokens; a state is kept at each segment's bounds.
constexpr int64_t kSegment = 8, kSegmentTokens = 16 * kSegment;

inline int64_t divided(int64_t n, int64_t by) { return (n + by - 1) / by; }
inline int64_t padded(int64_t n) { return divided(n, 16) * 16; }
inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// Rows or columns per block, a multiple of `unit`, when `threads` share that many streams.
inline int64_t block_size(int64_t values, int64_t streams, int64_t threads, int64_t unit) {
  return divided(divided(values, divided(threads, streams)), unit) * unit;
}

// Whether splitting over time is faster than one thread per stream. `work`: the work of all threads together with the
// boundary pass, relative to one thread without it; plus a quarter, because twice the threads are less than twice as
// fast. Without splitting, all streams together take as long as one.
inline bool pays_over_time(int64_t streams, int64_t tokens, int64_t threads, double work) {
  return streams > 0 && static_cast<double>(streams) * work <= static_cast<double>(threads) && tokens > kSegmentTokens;
}

// Partition of a state [keys, values] into blocks.
struct Blocks {
  int64_t keys = 0, values = 0;  // rows and columns of a block
  int64_t down = 1, across = 1;  // number of blocks

  int64_t count() const { return down * across; }
  // First row and first column of block i.
  int64_t key(int64_t i) const { return i % count() / across * keys; }
  int64_t value(int64_t i) const { return i % across * values; }
  // Rows and columns of block i of a state with `all` of them; the last blocks hold the remainder.
  int64_t keys_of(int64_t i, int64_t all) const { return least(all - key(i), keys); }
  int64_t values_of(int64_t i, int64_t all) const { return least(all - value(i), values); }
};

inline Blocks whole_state(int64_t keys, int64_t values) { return {.keys = keys, .values = values}; }

// Column blocks, for states whose rows depend on each other.
inline Blocks column_blocks(int64_t keys, int64_t values, int64_t streams, int64_t threads, int64_t unit) {
  const int64_t block = block_size(values, streams, threads, unit);
  return {.keys = keys, .values = block, .across = divided(values, block)};
}

// Row blocks, so that each gate belongs to one block; also column blocks if row blocks alone are too few.
inline Blocks row_blocks(int64_t keys, int64_t values, int64_t streams, int64_t threads) {
  const int64_t block = block_size(keys, streams, threads, 16), down = divided(keys, block);
  Blocks blocks = column_blocks(block, values, streams * down, threads, 16);
  blocks.down = down;
  return blocks;
}

// Values kept at the segments' bounds: all[streams][blocks][segments][room].
struct Kept {
  float *states = nullptr, *grads = nullptr;
  int64_t segments = 1;  // of a stream
  Blocks blocks = {};
  int64_t room = 0;

  Kept() = default;
  // Each block keeps `beside` extra numbers with its part of the state.
  Kept(int64_t tokens, const Blocks& of, int64_t beside)
      : segments(divided(tokens, kSegmentTokens)), blocks(of), room(padded(of.keys) * padded(of.values) + beside) {}

  // Memory of block i (counted over all streams), for all its segments.
  template <class T>
  T* of(T* all, int64_t i) const {
    return all + i * segments * room;
  }

  // Assembles the state [keys, values] at one segment's bound of a stream from its blocks, whose rows are `width`
  // apart.
  void gather(const float* all, int64_t stream, int64_t segment, int64_t keys, int64_t width, int64_t values,
              float* to) const {
    for (int64_t i = 0; i < blocks.count(); ++i) {
      const float* from = of(all, stream * blocks.count() + i) + segment * room;
      const int64_t key = blocks.key(i), value = blocks.value(i), rows = least(keys - key, padded(blocks.keys));
      const size_t bytes = static_cast<size_t>(least(values - value, width)) * sizeof(float);
      for (int64_t k = 0; k < rows; ++k) memcpy(to + (key + k) * values + value, from + k * width, bytes);
    }
  }
};

// Runs work(&jobs, i) on at most one thread per job; threads take jobs one after the other.
template <class Jobs>
void share(Jobs jobs, const Parallel& parallel, void (*work)(void* jobs, int64_t worker)) {
  const int64_t workers = jobs.count < parallel.threads ? jobs.count : parallel.threads;
  workers > 1 ? parallel.run(workers, work, &jobs) : work(&jobs, 0);
}

thread_local Arena shared_arena;

// Memory shared by all threads of a call. It is released at the end and kept by this thread for its next call. At most
// one Shared per thread at a time.
class Shared {
 public:
  explicit Shared(int64_t floats) : data_(shared_arena.take(padded(floats))) {}
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  ~Shared() { shared_arena.reset(); }
  float* data() const { return data_; }

 private:
  float* data_;
};

}  // namespace
}  // namespace cortado::kernels
