// Loops that do one thing only, as fast as this machine can: what the operators' speeds are held against. No torch
// here.
#pragma once

#include <cstdint>

#include "cortado/primitives/kernels/kernel.h"

namespace cortado::bench {

// What one call does is said beside each; every thread of `parallel` does as much.
void fma_loop(const kernels::Parallel& parallel, int64_t rounds);  // rounds · kFmaFlops · lanes() operations a thread
void exp_loop(const kernels::Parallel& parallel, int64_t rounds);  // rounds · kExpBlock exponentials a thread
inline constexpr int64_t kFmaFlops = 2 * 12;                       // a round and lane
inline constexpr int64_t kExpBlock = 4096;

// Buffers of n float32, n a multiple of 128 · threads, aligned to 64 bytes; divided among the threads.
void read_loop(const kernels::Parallel& parallel, const float* from, int64_t n);
// out = a + 3 b; `past_caches` writes out straight to memory, without first reading its lines.
void triad_loop(const kernels::Parallel& parallel, float* out, const float* a, const float* b, int64_t n,
                bool past_caches);

// float32 in a vector of the instruction set in use.
int64_t lanes();

}  // namespace cortado::bench
