// Loops that each do one thing as fast as this machine can; operators are compared with their speeds. Without torch.
#pragma once

#include <cstdint>

#include "cortado/primitives/kernels/kernel.h"

namespace cortado::bench {

// Every thread of `parallel` does the amount of work stated beside each function.
void fma_loop(const kernels::Parallel& parallel, int64_t rounds);  // rounds · kFmaFlops · lanes() flops per thread
void exp_loop(const kernels::Parallel& parallel, int64_t rounds);  // rounds · kExpBlock exponentials per thread
inline constexpr int64_t kFmaFlops = int64_t{2} * 12;              // per round and lane
inline constexpr int64_t kExpBlock = 4096;

// Buffers hold n float32, n a multiple of 128 · threads, aligned to 64 bytes; the threads divide them among themselves.
void read_loop(const kernels::Parallel& parallel, const float* from, int64_t n);
// out = a + 3 b. With `past_caches`, stores bypass the caches, so the lines of `out` are not read first.
void triad_loop(const kernels::Parallel& parallel, float* out, const float* a, const float* b, int64_t n,
                bool past_caches);

// Returns the number of float32 in a vector of the selected instruction set.
int64_t lanes();

}  // namespace cortado::bench
