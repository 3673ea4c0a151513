// How a scan is shared out among threads.
#pragma once

#include "cortado/primitives/gated_scan/kernel.h"

namespace cortado::gated {
namespace {  // internal linkage: included by units compiled for other instruction sets

// Tiles of 16 tokens between two states that are kept.
constexpr int64_t kSegment = 8, kSegmentTokens = 16 * kSegment;

// The states at the segments' starts and, of a backward, the gradients behind the segments, in blocks of columns that do
// not need one another. With them every segment can be computed on its own.
struct Kept {
  float *states = nullptr, *grads = nullptr;
  int64_t segments = 1, blocks = 1, block = 0;  // of a stream
  int64_t room = 0;                             // floats for a block's state: [streams][blocks][segments][room]
};

// The work of all threads: jobs are taken one after the other.
struct Jobs {
  const ScanKernel* scan;
  int64_t value_blocks, block;  // blocks of columns, each computed on its own
  int64_t count, next;
  Kept kept = {};

  int64_t take() { return __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED); }
};

inline int64_t divided(int64_t n, int64_t by) { return (n + by - 1) / by; }

// A job for each head of each row; where these are fewer than the threads and the state's columns do not need one
// another, for blocks of columns.
inline Jobs scan_jobs(const ScanKernel& scan, bool independent_columns, int64_t threads) {
  const int64_t streams = scan.rows * scan.heads;
  Jobs jobs{.scan = &scan, .value_blocks = 1, .block = scan.values, .count = 0, .next = 0};
  if (independent_columns && streams > 0 && streams < threads) {
    constexpr int64_t kUnit = 32;
    jobs.block = divided(divided(scan.values, divided(threads, streams)), kUnit) * kUnit;
    jobs.value_blocks = divided(scan.values, jobs.block);
  }
  jobs.count = streams * jobs.value_blocks;
  return jobs;
}

// Of one token: a job for each state.
inline Jobs step_jobs(const ScanKernel& scan) {
  const int64_t states = scan.rows * scan.final_state.heads;
  return {.scan = &scan, .value_blocks = 1, .block = scan.values, .count = states, .next = 0};
}

inline void run(Jobs jobs, const kernels::Parallel& parallel, void (*work)(void* jobs, int64_t worker)) {
  const int64_t workers = jobs.count < parallel.threads ? jobs.count : parallel.threads;
  workers > 1 ? parallel.run(workers, work, &jobs) : work(&jobs, 0);
}

}  // namespace
}  // namespace cortado::gated
