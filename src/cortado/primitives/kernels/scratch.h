// Scratch memory for one task of a kernel.
#pragma once

#include <stdint.h>
#include <stdlib.h>

namespace cortado::kernels {
namespace {  // internal linkage: units compiled for other instruction sets must not share it

// A thread's blocks of memory, kept between tasks: touching fresh pages costs more than many a product.
struct Arena {
  static constexpr int kMost = 32;
  static constexpr int64_t kSmallest = 1 << 18, kKept = 1 << 24;  // floats
  float* blocks[kMost] = {};
  int64_t sizes[kMost] = {};
  int count = 0, current = 0;
  int64_t used = 0, together = 0;

  ~Arena() { release(); }
  void release() {
    for (int i = 0; i < count; ++i) free(blocks[i]);
    count = 0;
  }
  float* take(int64_t size) {
    for (; current < count && used + size > sizes[current]; ++current) used = 0;
    if (current == count) {
      if (count == kMost) abort();  // a kernel takes a dozen pieces
      const int64_t least = count == 0 && together > kSmallest ? together : kSmallest;
      sizes[count] = size > least ? size : least;
      blocks[count] = static_cast<float*>(aligned_alloc(64, static_cast<size_t>(sizes[count]) * sizeof(float)));
      if (!blocks[count]) abort();
      ++count;
    }
    used += size;
    return blocks[current] + used - size;
  }
  // If a task needed several blocks, the next one gets a single block of their total size, so that blocks do not pile
  // up.
  void reset() {
    int64_t total = 0;
    for (int i = 0; i < count; ++i) total += sizes[i];
    if (total > kKept || count > 1) {
      together = total > kKept ? 0 : total;
      release();
    }
    current = 0;
    used = 0;
  }
};
thread_local Arena arena;

// Memory of a task, released at its end. At most one Scratch per thread at a time.
class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { arena.reset(); }
  // `size` floats, uninitialised, aligned to 64 bytes.
  float* take(int64_t size) { return arena.take((size + 15) / 16 * 16); }
};

}  // namespace
}  // namespace cortado::kernels
