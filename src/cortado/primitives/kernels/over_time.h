// How a scan shares out its time among threads where it has fewer streams (heads of rows) than these.
//
// First, what segments of a stream's time need of one another: the state at their starts and, of a backward, the
// gradient behind them, each in blocks of the state's columns, which do not need one another. With them every segment
// is computed on its own. All by the same operations in the same order as one thread's, so that no bit depends on it.
#pragma once

#include <stdlib.h>
#include <string.h>

#include "cortado/primitives/kernels/kernel.h"

namespace cortado::kernels {
namespace {  // internal linkage: included by units compiled for other instruction sets

// Tiles of 16 tokens between two states that are kept.
constexpr int64_t kSegment = 8, kSegmentTokens = 16 * kSegment;

inline int64_t divided(int64_t n, int64_t by) { return (n + by - 1) / by; }

// Columns of a block, a multiple of `unit`, where there are `threads` for so many streams.
inline int64_t block_of_columns(int64_t values, int64_t streams, int64_t threads, int64_t unit) {
  return divided(divided(values, divided(threads, streams)), unit) * unit;
}

// Finding the bounds takes a third to a half of one thread's time more.
inline bool pays_over_time(int64_t streams, int64_t tokens, int64_t threads) {
  return streams > 0 && 4 * streams <= 3 * threads && tokens > kSegmentTokens;
}

// What is kept at the segments' bounds: all[streams][blocks][segments][room].
struct Kept {
  float *states = nullptr, *grads = nullptr;
  int64_t segments = 1, blocks = 1, block = 0;  // of a stream; columns of a block
  int64_t room = 0;

  Kept() = default;
  // Blocks for so many threads; each keeps `beside` numbers with its state's.
  Kept(int64_t streams, int64_t tokens, int64_t keys, int64_t values, int64_t threads, int64_t beside)
      : segments(divided(tokens, kSegmentTokens)), block(block_of_columns(values, streams, threads, 16)) {
    blocks = divided(values, block);
    room = divided(keys, 16) * 16 * block + beside;
  }

  // Where number i of all streams' blocks keeps its segments.
  float* of(float* all, int64_t i) const { return all + i * segments * room; }

  // The state [keys, values] at one of a stream's bounds, from its blocks, whose rows are `width` apart.
  void gather(const float* all, int64_t stream, int64_t segment, int64_t keys, int64_t width, int64_t values,
              float* to) const {
    for (int64_t i = 0; i < blocks; ++i) {
      const float* from = all + ((stream * blocks + i) * segments + segment) * room;
      const int64_t left = values - i * block, columns = left < width ? left : width;
      for (int64_t k = 0; k < keys; ++k) {
        memcpy(to + k * values + i * block, from + k * width, static_cast<size_t>(columns) * sizeof(float));
      }
    }
  }
};

// work(&jobs, i) on as many threads as there are jobs for, which they take one after the other.
template <class Jobs>
void share(Jobs jobs, const Parallel& parallel, void (*work)(void* jobs, int64_t worker)) {
  const int64_t workers = jobs.count < parallel.threads ? jobs.count : parallel.threads;
  workers > 1 ? parallel.run(workers, work, &jobs) : work(&jobs, 0);
}

// Memory for all threads' use, given back at the end.
class Shared {
 public:
  explicit Shared(int64_t floats)
      : data_(static_cast<float*>(aligned_alloc(64, static_cast<size_t>((floats + 15) / 16 * 64)))) {
    if (!data_) abort();
  }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  ~Shared() { free(data_); }
  float* data() const { return data_; }

 private:
  float* data_;
};

}  // namespace
}  // namespace cortado::kernels
