// The delta scan in tiles of 16 tokens; README.md, "The kernel". Compiled once for each instruction set.
#include "cortado/primitives/delta_scan/kernel.h"

#include "cortado/primitives/kernels/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cortado/primitives/delta_scan/kernel.cpp"
#include <hwy/foreach_target.h>
// after foreach_target
#include "cortado/primitives/delta_scan/step-inl.h"
#include "cortado/primitives/delta_scan/tile-inl.h"

#ifndef CORTADO_DELTA_SCAN_KERNEL_ONCE
#define CORTADO_DELTA_SCAN_KERNEL_ONCE
namespace cortado::delta {
namespace {

// Over time the errors and pairs of all tiles of every stream's blocks of columns are kept for the segments:
// [streams][blocks][tiles][16, block] and [16, 16].
struct Jobs : gated::Jobs {
  float *errors = nullptr, *scores = nullptr;
};

}  // namespace
}  // namespace cortado::delta
#endif

HWY_BEFORE_NAMESPACE();
namespace cortado::delta {
namespace HWY_NAMESPACE {
namespace {

// The state behind a tile, from that at its start.
void store(const Job& job, const float* from, float* to) {
  advance(job, job.leaving, {job.v, job.values}, job.through, from, to);
}

// The second read's pairs alone, rounded as with those of both.
void score_held(const Job& held) { score_pairs<1, kScoreVecs<2>>(held); }

// Tiles from `begin` to `end`, from the state at the first one's start.
void forward(Tile& tile, int64_t begin, int64_t end) {
  Job& job = tile.stored;
  for (int64_t i = begin; i < end; ++i) {
    const Stretch at = job.stretch(i);
    read_writes(job, at);
    read_held(tile, at);
    read_reads(job, at);
    look_ahead(job, i + 1, true);
    score_pairs<2>(job);
    find_corrections(tile, job.state);
    job.v_rows = {job.v, job.values};
    read_by_scores(job, at);
    store(job, job.state, job.state);
  }
}

void forward(Tile& tile) {
  Job& job = tile.stored;
  read_state(job, job.in.initial, job.state);
  forward(tile, 0, job.tiles());
  write_state(job, job.state, job.in.final_state);
}

// The errors and pairs of tile i in their place.
void turn_to(Tile& tile, int64_t i) {
  tile.errors = tile.all_errors + (i - tile.first) * kTokens * tile.stored.values;
  tile.held.scores = tile.all_scores + (i - tile.first) * kTokens * kTokens;
}

// The states at the segments' starts and, of a backward, all tiles' errors.
void find_errors(Tile& tile) {
  Job& job = tile.stored;
  const int64_t size = job.state_size(), all = job.tiles();
  const int64_t tiles = job.backward() ? all : (job.segments() - 1) * kSegment;
  read_state(job, job.in.initial, job.segment_states);
  for (int64_t i = 0; i < tiles; ++i) {
    const Stretch at = job.stretch(i);
    read_writes(job, at);
    read_held(tile, at);
    look_ahead(job, i + 1, false);
    if (job.backward()) turn_to(tile, i);
    score_held(tile.held);
    float* first = job.segment_states + i / kSegment * size;
    const float* state = i % kSegment == 0 ? first : job.state;
    find_corrections(tile, state);
    if (i + 1 < all) store(job, state, i % kSegment == kSegment - 1 ? first + size : job.state);
  }
}

// One tile of the backward, from the state at its start and the gradient behind it, which becomes the gradient before
// it.
template <bool kGate>
void differentiate(Tile& tile, int64_t i, const float* state) {
  Job &job = tile.stored, &held = tile.held;
  const Stretch at = job.stretch(i);
  read_keys(job, at);
  read_held(tile, at);
  read_reads(job, at);
  look_ahead(job, i - 1, true);
  turn_to(tile, i);
  times_rows(tile.errors, tile.beta, job.values, job.v);
  score_pairs(job);
  solve_back(tile);
  weigh_both(tile);
  read_decayed(job, job.grad, job.v_lanes, job.leave, job.dx);
  read_decayed(job, state, job.w_lanes, job.enter, job.dy);
  read_decayed(held, state, held.w_lanes, held.enter, held.dy);
  if (kGate) {
    gate_flow(job, state);
    add_gate_flow(held);
  }
  pair_gradients_of_both<kGate>(tile);
  if (kGate) write_gate_gradient(job, at);
  write_tile(job.dy, job.keys, job.in.dy, at, 0, job.in.keys);
  write_key_gradient(tile, at);
  write_tile(held.w, job.values, job.in.dv, at, 0, job.columns);
  write_beta_gradient(tile, at);
  advance(job, job.entering, {job.w, job.values}, job.through, job.grad, job.grad, 2 * kTokens);  // both reads
}

// From the state at a segment's start, in tile_states, and the gradient behind it: forwards for its tiles' states, and
// back.
void differentiate_segment(Tile& tile, int64_t segment) {
  Job& job = tile.stored;
  const int64_t size = job.state_size(), start = segment * kSegment, left = job.tiles() - start;
  const int64_t count = left < kSegment ? left : kSegment;
  for (int64_t i = 0; i + 1 < count; ++i) {
    const Stretch at = job.stretch(start + i);
    read_keys(job, at);
    read_numbers(tile.in.beta, at, tile.beta);
    turn_to(tile, start + i);
    times_rows(tile.errors, tile.beta, job.values, job.v);
    look_ahead(job, start + i + 1, i + 2 >= count);
    store(job, job.tile_states + i * size, job.tile_states + (i + 1) * size);
  }
  for (int64_t i = count - 1; i >= 0; --i) {
    const float* state = job.tile_states + i * size;
    job.in.dg.data ? differentiate<true>(tile, start + i, state) : differentiate<false>(tile, start + i, state);
  }
}

void backward(Tile& tile) {
  Job& job = tile.stored;
  find_errors(tile);
  read_final_grad(job);
  for (int64_t segment = job.segments() - 1; segment >= 0; --segment) {
    copy(job.segment_states + segment * job.state_size(), job.state_size(), job.tile_states);
    differentiate_segment(tile, segment);
  }
  write_state(job, job.grad, job.in.initial_grad);
}

// kDo(tile, jobs, i) for every job number i that is left.
template <void (*kDo)(Tile& tile, const Jobs& jobs, int64_t i)>
void do_jobs(Jobs& jobs) {
  const FlushDenormals guard;
  Fetcher fetcher;
  Scratch scratch;
  Tile tile(static_cast<const ScanKernel&>(*jobs.scan), round_up(jobs.block, kLanes), fetcher, scratch);
  for (int64_t i = jobs.take(); i < jobs.count; i = jobs.take()) kDo(tile, jobs, i);
}

void do_stream(Tile& tile, const Jobs& jobs, int64_t i) {
  place(tile.stored, jobs, i);
  tile.stored.backward() ? backward(tile) : forward(tile);
}

void do_scan(Jobs& jobs) { do_jobs<do_stream>(jobs); }

// --- Over time. ---

// The gradients behind the segments, as `differentiate` passes them on.
void find_grads(Tile& tile) {
  Job &job = tile.stored, &held = tile.held;
  held.scores = job.scores + kTokens * kTokens;
  read_final_grad(job);
  for (int64_t i = job.tiles() - 1; i >= 0; --i) {
    if (!keep_grad(job, i)) return;
    const Stretch at = job.stretch(i);
    read_keys(job, at);
    read_held(tile, at);
    read_reads(job, at);
    look_ahead(job, i - 1, false);
    score_pairs(job);
    score_held(held);
    solve_back(tile);
    advance(job, job.entering, {job.w, job.values}, job.through, job.grad, job.grad, 2 * kTokens);
  }
}

void find_bounds(Tile& tile, const Jobs& jobs, int64_t i) {
  Job& job = tile.stored;
  const bool forwards = open_block(job, jobs, i);
  if (job.backward()) {
    const int64_t before = i / 2 * job.tiles() * kTokens;
    tile.all_errors = jobs.errors + before * job.values;
    tile.all_scores = jobs.scores + before * kTokens;
  }
  forwards ? find_errors(tile) : find_grads(tile);
}

void do_bounds(Jobs& jobs) { do_jobs<find_bounds>(jobs); }

// A segment's errors from the stream's blocks of columns, and its pairs, which all blocks have.
void gather_errors(Tile& tile, const Jobs& jobs, const Segment& segment) {
  const Kept& kept = jobs.kept;
  const int64_t tiles = tile.stored.tiles(), width = round_up(kept.block, kLanes), values = tile.stored.values;
  const int64_t rows = (segment.end - segment.begin) * kTokens, first = segment.stream * kept.blocks;
  tile.first = segment.begin;
  for (int64_t block = 0; block < kept.blocks; ++block) {
    const float* from = jobs.errors + ((first + block) * tiles + tile.first) * kTokens * width;
    const int64_t column = block * kept.block, columns = values - column < width ? values - column : width;
    for (int64_t i = 0; i < rows; ++i) copy(from + i * width, columns, tile.all_errors + i * values + column);
  }
  tile.all_scores = jobs.scores + (first * tiles + tile.first) * kTokens * kTokens;
}

void do_segment(Tile& tile, const Jobs& jobs, int64_t i) {
  const Segment segment = open_segment(tile.stored, jobs, i);
  if (tile.stored.backward()) {
    gather_errors(tile, jobs, segment);
    differentiate_segment(tile, segment.number);
  } else {
    forward(tile, segment.begin, segment.end);
  }
  close_segment(tile.stored, segment);
}

void do_segments(Jobs& jobs) { do_jobs<do_segment>(jobs); }

void do_steps(Jobs& jobs) {
  const ScanKernel& in = static_cast<const ScanKernel&>(*jobs.scan);
  const FlushDenormals guard;
  StepInputs inputs;
  for (int64_t i = jobs.take(); i < jobs.count; i = jobs.take()) step_state(in, inputs, i);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace cortado::delta
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cortado::delta {

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
  const gated::OverTime plan(scan, parallel.threads);
  const int64_t rows = scan.dx.data ? plan.streams * plan.kept.blocks * kernels::divided(scan.tokens, 16) * 16 : 0;
  const kernels::Shared memory(plan.size() + rows * (plan.kept.block + 16));
  float *errors = memory.data() + plan.size(), *scores = errors + rows * plan.kept.block;
  share(Jobs{plan.blocks(memory.data()), errors, scores}, parallel, &work_bounds);
  share(Jobs{plan.segments(memory.data()), errors, scores}, parallel, &work_segments);
}

}  // namespace

void run_scan(const ScanKernel& scan, const kernels::Parallel& parallel) {
  const Jobs whole{gated::scan_jobs(scan, !scan.dx.data, parallel.threads)};
  gated::pays_over_time(whole, parallel.threads) ? run_over_time(scan, parallel) : share(whole, parallel, &work);
}

void run_step(const ScanKernel& scan, const kernels::Parallel& parallel) {
  share(Jobs{gated::step_jobs(scan)}, parallel, &work_step);
}

}  // namespace cortado::delta
#endif
