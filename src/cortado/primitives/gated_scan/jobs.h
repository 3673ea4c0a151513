// Splits a scan into jobs for threads.
#pragma once

#include "cortado/primitives/gated_scan/kernel.h"
#include "cortado/primitives/kernels/over_time.h"

namespace cortado::gated {
namespace {  // internal linkage: included by units compiled for other instruction sets

// The jobs of all threads; each thread takes the next one when it is free.
struct Jobs {
  const ScanKernel* scan;
  kernels::Blocks blocks;  // of each state, computed independently
  int64_t count, next;
  kernels::Kept kept = {};

  int64_t take() { return __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED); }
};

// One job per head and row. If there are fewer of these than threads and the state's columns are independent, one job
// per block of columns.
inline Jobs scan_jobs(const ScanKernel& scan, bool independent_columns, int64_t threads) {
  const int64_t streams = scan.rows * scan.heads;
  const bool cut = independent_columns && streams > 0 && streams < threads;
  const kernels::Blocks blocks = cut ? kernels::column_blocks(scan.keys, scan.values, streams, threads, 32)
                                     : kernels::whole_state(scan.keys, scan.values);
  return {.scan = &scan, .blocks = blocks, .count = streams * blocks.count(), .next = 0};
}

// Whether to split over time because `whole` has fewer jobs than there are threads.
inline bool pays_over_time(const Jobs& whole, int64_t threads, double work) {
  const ScanKernel& scan = *whole.scan;
  return whole.count < threads && !scan.bounds &&
         kernels::pays_over_time(scan.rows * scan.heads, scan.tokens, threads, work);
}

// The two rounds of splitting over time: first blocks of the state (of a backward in both directions), then segments.
struct OverTime {
  const ScanKernel& scan;
  int64_t streams, directions;
  kernels::Kept kept;

  // `by_rows`: the state's rows are independent, too.
  OverTime(const ScanKernel& of, int64_t threads, bool by_rows)
      : scan(of), streams(of.rows * of.heads), directions(of.dx.data ? 2 : 1) {
    const int64_t of_each = kernels::divided(threads, directions);
    kept = {of.tokens,
            by_rows ? kernels::row_blocks(of.keys, of.values, streams, of_each)
                    : kernels::column_blocks(of.keys, of.values, streams, of_each, 16),
            0};
  }
  int64_t one_way() const { return streams * kept.blocks.count() * kept.segments * kept.room; }
  int64_t size() const { return directions * one_way(); }  // floats of memory that both rounds need
  kernels::Kept in(float* memory) const {
    kernels::Kept there = kept;
    there.states = memory;
    there.grads = memory + (directions - 1) * one_way();
    return there;
  }
  Jobs blocks(float* memory) const {
    return {&scan, kept.blocks, directions * streams * kept.blocks.count(), 0, in(memory)};
  }
  Jobs segments(float* memory) const {
    return {&scan, kernels::whole_state(scan.keys, scan.values), streams * kept.segments, 0, in(memory)};
  }
};

// One token: one job per state.
inline Jobs step_jobs(const ScanKernel& scan) {
  const int64_t states = scan.rows * scan.final_state.heads;
  return {.scan = &scan, .blocks = kernels::whole_state(scan.keys, scan.values), .count = states, .next = 0};
}

}  // namespace
}  // namespace cortado::gated
