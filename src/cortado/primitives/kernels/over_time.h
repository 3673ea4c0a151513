// How a scan shares out its time among threads where it has fewer streams (heads of rows) than these.
//
// First, what segments of a stream's time need of one another: the state at their starts and, of a backward, the
// gradient behind them, each in blocks of the state's rows or columns, which do not need one another. With them every
// segment is computed on its own. All by the same operations in the same order as one thread's, so that no bit depends
// on it.
#pragma once

#include <string.h>

#include "cortado/primitives/kernels/kernel.h"
#include "cortado/primitives/kernels/scratch.h"

namespace cortado::kernels {
namespace {  // internal linkage: included by units compiled for other instruction sets

// Tiles of 16 tokens between two states that are kept.
constexpr int64_t kSegment = 8, kSegmentTokens = 16 * kSegment;

inline int64_t divided(int64_t n, int64_t by) { return (n + by - 1) / by; }
inline int64_t padded(int64_t n) { return divided(n, 16) * 16; }
inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// Rows or columns of a block, a multiple of `unit`, where there are `threads` for so many streams.
inline int64_t block_size(int64_t values, int64_t streams, int64_t threads, int64_t unit) {
  return divided(divided(values, divided(threads, streams)), unit) * unit;
}

// `work`: of all threads together, over one thread's where it finds no bounds, and a quarter for what twice the threads are
// less than twice as fast. Streams alone take as long as one of them.
inline bool pays_over_time(int64_t streams, int64_t tokens, int64_t threads, double work) {
  return streams > 0 && static_cast<double>(streams) * work <= static_cast<double>(threads) && tokens > kSegmentTokens;
}

// A state [keys, values] in blocks.
struct Blocks {
  int64_t keys = 0, values = 0;  // rows and columns of a block
  int64_t down = 1, across = 1;  // so many of them

  int64_t count() const { return down * across; }
  // Where block number i begins.
  int64_t key(int64_t i) const { return i % count() / across * keys; }
  int64_t value(int64_t i) const { return i % across * values; }
  // How many of a state's rows and columns it has; the last ones have what is left.
  int64_t keys_of(int64_t i, int64_t all) const { return least(all - key(i), keys); }
  int64_t values_of(int64_t i, int64_t all) const { return least(all - value(i), values); }
};

inline Blocks whole_state(int64_t keys, int64_t values) { return {.keys = keys, .values = values}; }

// Of columns: for states whose rows need one another.
inline Blocks column_blocks(int64_t keys, int64_t values, int64_t streams, int64_t threads, int64_t unit) {
  const int64_t block = block_size(values, streams, threads, unit);
  return {.keys = keys, .values = block, .across = divided(values, block)};
}

// Of rows, which leave every gate to one block; and of columns where that does not suffice.
inline Blocks row_blocks(int64_t keys, int64_t values, int64_t streams, int64_t threads) {
  const int64_t block = block_size(keys, streams, threads, 16), down = divided(keys, block);
  Blocks blocks = column_blocks(block, values, streams * down, threads, 16);
  blocks.down = down;
  return blocks;
}

// What is kept at the segments' bounds: all[streams][blocks][segments][room].
struct Kept {
  float *states = nullptr, *grads = nullptr;
  int64_t segments = 1;  // of a stream
  Blocks blocks = {};
  int64_t room = 0;

  Kept() = default;
  // Each block keeps `beside` numbers with its state's.
  Kept(int64_t tokens, const Blocks& of, int64_t beside)
      : segments(divided(tokens, kSegmentTokens)), blocks(of), room(padded(of.keys) * padded(of.values) + beside) {}

  // Where number i of all streams' blocks keeps its segments.
  template <class T>
  T* of(T* all, int64_t i) const {
    return all + i * segments * room;
  }

  // The state [keys, values] at one of a stream's bounds, from its blocks, whose rows are `width` apart.
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

// work(&jobs, i) on as many threads as there are jobs for, which they take one after the other.
template <class Jobs>
void share(Jobs jobs, const Parallel& parallel, void (*work)(void* jobs, int64_t worker)) {
  const int64_t workers = jobs.count < parallel.threads ? jobs.count : parallel.threads;
  workers > 1 ? parallel.run(workers, work, &jobs) : work(&jobs, 0);
}

thread_local Arena shared_arena;

// Memory for all threads' use, given back at the end and kept by this one for the next time. One Shared a thread at a
// time.
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
