// The gated scan in tiles of 16 tokens; README.md, "The kernel". Compiled once per instruction set.
#include "cortado/primitives/gated_scan/kernel.h"

#include "cortado/primitives/kernels/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cortado/primitives/gated_scan/kernel.cpp"
#include <hwy/foreach_target.h>
// after foreach_target
#include "cortado/primitives/gated_scan/step-inl.h"
#include "cortado/primitives/gated_scan/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace cortado::gated {
namespace HWY_NAMESPACE {
namespace {

// --- The scan. ---

// Computes tiles `begin` to `end`, given the state at the start of the first one.
void forward(Job& job, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    const Stretch at = job.stretch(i);
    read_writes(job, at);
    read_reads(job, at);
    look_ahead(job, i + 1, true);
    if (job.in.dw.data) {
      score_pairs(job);
      read_by_scores(job, at);
    } else if (job.in.dy.data) {
      weigh_pairs(job);
      read_decayed(job, job.state, job.w_lanes, job.by_channel() ? nullptr : job.enter, job.dy);
      job.by_channel() ? differentiate_reads<false>(job) : pair_gradients<false, false>(job);
      write_tile(job.dy, job.keys, job.in.dy, at, 0, job.in.keys);
    }
    pass_tile(job, job.state, job.state);
  }
}

void forward(Job& job) {
  read_state(job, job.in.initial, job.state);
  forward(job, 0, job.tiles());
  write_state(job, job.state, job.in.final_state);
}

// Computes dy, dx and dg of a tile with one gate per channel.
void differentiate_channels(Job& job) {
  const bool gate = job.in.dg.data;
  read_decayed(job, job.grad, job.v_lanes, nullptr, job.dx);
  if (gate || job.in.dy.data) {
    read_decayed(job, job.state, job.w_lanes, nullptr, job.dy);
    gate ? differentiate_reads<true>(job) : differentiate_reads<false>(job);
  }
  if (gate) finish_gate_gradient(job);
  differentiate_writes(job);
}

// Computes dy, dx and dg of a tile with one gate per head.
void differentiate_head(Job& job) {
  const bool gate = job.in.dg.data;
  read_decayed(job, job.grad, job.v_lanes, job.leave, job.dx);
  if (gate || job.in.dy.data) read_decayed(job, job.state, job.w_lanes, job.enter, job.dy);
  if (gate) gate_flow(job, job.state);
  gate ? pair_gradients<true, true>(job) : pair_gradients<true, false>(job);
}

// Computes one tile of the backward from the state at its start and the gradient of the state at its end. Replaces that
// gradient by the gradient at the tile's start.
void differentiate(Job& job, int64_t tile) {
  const Stretch at = job.stretch(tile);
  read_writes(job, at);
  read_reads(job, at);
  look_ahead(job, tile - 1, true);
  score_pairs(job);
  weigh_pairs(job);
  job.by_channel() ? differentiate_channels(job) : differentiate_head(job);
  if (job.in.dg.data) write_gate_gradient(job, at);
  write_tile(job.dy, job.keys, job.in.dy, at, 0, job.in.keys);
  write_tile(job.dx, job.keys, job.in.dx, at, 0, job.in.keys);
  if (job.in.dw.data) read_by_scores(job, at);
  value_gradients(job);
  write_tile(job.dv, job.values, job.in.dv, at, 0, job.columns);
  advance(job, job.entering, {job.w, job.values}, job.through, job.grad, job.grad);
}

// Forward pass over time: computes the states at the segments' starts.
void find_states(Job& job) {
  const int64_t size = job.state_size();
  read_state(job, job.in.initial, job.segment_states);
  for (int64_t i = 0; i < (job.segments() - 1) * kSegment; ++i) {
    read_writes(job, job.stretch(i));
    look_ahead(job, i + 1, false);
    float* from = job.segment_states + i / kSegment * size;
    const bool last = i % kSegment == kSegment - 1;
    pass_tile(job, i % kSegment == 0 ? from : job.state, last ? from + size : job.state);
  }
}

// Backward pass over time: computes the gradients at the segments' ends as `differentiate` passes them on.
void find_grads(Job& job) {
  read_final_grad(job);
  for (int64_t i = job.tiles() - 1; i >= 0; --i) {
    if (!keep_grad(job, i)) return;
    const Stretch at = job.stretch(i);
    read_keys(job, at);
    read_reads(job, at);
    look_ahead(job, i - 1, false);
    advance(job, job.entering, {job.w, job.values}, job.through, job.grad, job.grad);
  }
}

// Computes a segment's backward, given the state at its start and the gradient at its end: first forwards to get its
// tiles' states, then backwards.
void differentiate_segment(Job& job, int64_t segment) {
  const int64_t size = job.state_size(), start = segment * kSegment, left = job.tiles() - start;
  const int64_t count = left < kSegment ? left : kSegment;
  float* state = job.state;
  for (int64_t i = 0; i + 1 < count; ++i) {
    read_writes(job, job.stretch(start + i));
    look_ahead(job, start + i + 1, i + 2 >= count);
    pass_tile(job, job.tile_states + i * size, job.tile_states + (i + 1) * size);
  }
  for (int64_t i = count - 1; i >= 0; --i) {
    job.state = job.tile_states + i * size;
    differentiate(job, start + i);
  }
  job.state = state;
}

void backward(Job& job) {
  find_states(job);
  read_final_grad(job);
  fill(job.dbonus, job.keys, 0);
  for (int64_t segment = job.segments() - 1; segment >= 0; --segment) {
    copy(job.segment_states + segment * job.state_size(), job.state_size(), job.tile_states);
    differentiate_segment(job, segment);
  }
  write_state(job, job.grad, job.in.initial_grad);
  if (job.in.dbonus)
    write_row(job.dbonus, job.in.dbonus + (job.row * job.in.heads + job.head) * job.in.keys, 1, job.in.keys);
}

// Takes jobs until none is left and calls kDo(job, jobs, number) for each.
template <void (*kDo)(Job& job, const Jobs& jobs, int64_t i)>
void do_jobs(Jobs& jobs) {
  const ScanKernel& in = *jobs.scan;
  const FlushDenormals guard;
  Fetcher fetcher;
  Scratch scratch;
  Job job{{.keys = round_up(jobs.blocks.keys, 16), .values = round_up(jobs.blocks.values, kLanes), .fetcher = &fetcher},
          in};
  fetcher.pace *= jobs.blocks.count();
  lay_out(job, scratch);
  set_constants(job);
  for (int64_t i = jobs.take(); i < jobs.count; i = jobs.take()) kDo(job, jobs, i);
}

// Computes one stream, or one block of its state.
void do_stream(Job& job, const Jobs& jobs, int64_t i) {
  place(job, jobs, i);
  if (job.in.bonus) read_row(job.in.bonus + job.head * job.in.keys, 1, job.in.keys, 1.0f, job.bonus, job.keys);
  job.backward() ? backward(job) : forward(job);
}

void do_scan(Jobs& jobs) { do_jobs<do_stream>(jobs); }

// --- Splitting over time: first the states and gradients at the segments' bounds, then each segment by itself. ---

void find_bounds(Job& job, const Jobs& jobs, int64_t i) {
  open_block(job, jobs, i) ? find_states(job) : find_grads(job);
}

void do_bounds(Jobs& jobs) { do_jobs<find_bounds>(jobs); }

void do_segment(Job& job, const Jobs& jobs, int64_t i) {
  const Segment segment = open_segment(job, jobs, i);
  if (job.backward()) {
    fill(job.dbonus, job.keys, 0);
    differentiate_segment(job, segment.number);
  } else {
    forward(job, segment.begin, segment.end);
  }
  close_segment(job, segment);
}

void do_segments(Jobs& jobs) { do_jobs<do_segment>(jobs); }

// --- One token. ---

void do_steps(Jobs& jobs) {
  const ScanKernel& in = *jobs.scan;
  const FlushDenormals guard;
  StepInputs inputs;
  const int64_t shared = in.heads / in.final_state.heads, size = in.keys * in.values;
  for (int64_t i = jobs.take(); i < jobs.count; i = jobs.take()) {
    const int64_t row = i / in.final_state.heads, head = i % in.final_state.heads * shared;
    const Stretch at{row, head, 0, 1, 1};
    read_token(in.x, at, in.keys, 1, inputs.x);
    read_token(in.v, at, in.values, 1, inputs.v);
    read_step_gates(in, at, inputs.a);
    const float* before = in.initial.data ? in.initial.data + i * size : nullptr;
    for (int64_t j = 0; j < shared; ++j) {
      step_head(in, inputs, {row, head + j, 0, 1, 1}, before, in.final_state.data + i * size, j > 0);
    }
  }
  if (leaves_caches(in)) hwy::FlushStream();
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace cortado::gated
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cortado::gated {

namespace {

using kernels::share;

HWY_EXPORT(do_scan);
HWY_EXPORT(do_bounds);
HWY_EXPORT(do_segments);
HWY_EXPORT(do_steps);

void work(void* jobs, int64_t) { HWY_DYNAMIC_DISPATCH(do_scan)(*static_cast<Jobs*>(jobs)); }
void work_bounds(void* jobs, int64_t) { HWY_DYNAMIC_DISPATCH(do_bounds)(*static_cast<Jobs*>(jobs)); }
void work_segments(void* jobs, int64_t) { HWY_DYNAMIC_DISPATCH(do_segments)(*static_cast<Jobs*>(jobs)); }
void work_step(void* jobs, int64_t) { HWY_DYNAMIC_DISPATCH(do_steps)(*static_cast<Jobs*>(jobs)); }

void run_over_time(const ScanKernel& scan, const kernels::Parallel& parallel) {
  const OverTime plan(scan, parallel.threads, /*by_rows=*/true);
  const kernels::Shared memory(plan.size());
  share(plan.blocks(memory.data()), parallel, &work_bounds);
  share(plan.segments(memory.data()), parallel, &work_segments);
}

}  // namespace

void run_scan(const ScanKernel& scan, const kernels::Parallel& parallel) {
  const bool independent_columns = scan.dw.data && !scan.dy.data && !scan.dx.data;
  const Jobs whole = scan_jobs(scan, independent_columns, parallel.threads);
  // The gradient of a bonus sums over all of time, so a call with a bonus is not split.
  const bool pays = !scan.bonus && pays_over_time(whole, parallel.threads, scan.dx.data ? 1.7 : 2.5);
  if (pays) return run_over_time(scan, parallel);
  share(whole, parallel, &work);
}

void run_step(const ScanKernel& scan, const kernels::Parallel& parallel) {
  share(step_jobs(scan), parallel, &work_step);
}

}  // namespace cortado::gated
#endif
