// The delta scan in tiles of 16 tokens; README.md, "The kernel". Compiled once per instruction set.
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

// Kept for all tiles when time is split. Per stream: the pair products of the second read and, in a backward, of the
// first, [streams][tiles][16, 16]. In a backward also the errors per block of columns, [streams][blocks][tiles][16,
// block].
struct Jobs : gated::Jobs {
  float *scores = nullptr, *pairs = nullptr, *errors = nullptr;
};

}  // namespace
}  // namespace cortado::delta
#endif

HWY_BEFORE_NAMESPACE();
namespace cortado::delta {
namespace HWY_NAMESPACE {
namespace {

// Computes the state after a tile from the state at its start.
void store(const Job& job, const float* from, float* to) {
  advance(job, job.leaving, {job.v, job.values}, job.through, from, to);
}

// Computes the pair products of one read, rounded as when both are computed together.
void score_one(const Job& read) { score_pairs<1, kScoreVecs<2>>(read); }

// Points to the stored errors and pair products of tile i.
void turn_to(Tile& tile, int64_t i) {
  const int64_t number = i - tile.first;
  if (tile.all_errors) tile.errors = tile.all_errors + number * kTokens * tile.stored.values;
  tile.held.scores = tile.all_scores + number * kTokens * kTokens;
  if (tile.all_pairs) tile.stored.scores = tile.all_pairs + number * kTokens * kTokens;
}

// Computes tiles `begin` to `end`, given the state at the start of the first one.
void forward(Tile& tile, int64_t begin, int64_t end) {
  Job& job = tile.stored;
  for (int64_t i = begin; i < end; ++i) {
    const Stretch at = job.stretch(i);
    read_writes(job, at);
    read_held(tile, at);
    read_reads(job, at);
    look_ahead(job, i + 1, true);
    if (tile.all_scores) {  // split over time: the second read's are stored
      turn_to(tile, i);
      score_one(job);
    } else {
      score_pairs<2>(job);
    }
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

// Computes the states at the segments' starts and, in a backward, the errors of all tiles. `scored`: the pair products
// are stored.
void find_errors(Tile& tile, bool scored) {
  Job& job = tile.stored;
  const int64_t size = job.state_size(), all = job.tiles();
  const int64_t tiles = job.backward() ? all : (job.segments() - 1) * kSegment;
  read_state(job, job.in.initial, job.segment_states);
  for (int64_t i = 0; i < tiles; ++i) {
    const Stretch at = job.stretch(i);
    turn_to(tile, i);
    read_writes(job, at);
    read_held(tile, at);
    look_ahead(job, i + 1, false);
    if (!scored) score_one(tile.held);
    float* first = job.segment_states + i / kSegment * size;
    const float* state = i % kSegment == 0 ? first : job.state;
    find_corrections(tile, state);
    if (i + 1 < all) store(job, state, i % kSegment == kSegment - 1 ? first + size : job.state);
  }
}

// Computes one tile of the backward from the state at its start and the gradient of the state at its end. Replaces that
// gradient by the gradient at the tile's start.
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
  if (!tile.all_pairs) score_pairs(job);
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

// Computes a segment's backward, given the state at its start (in tile_states) and the gradient of the state at its
// end: first forwards to get its tiles' states, then backwards.
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
  find_errors(tile, false);
  read_final_grad(job);
  for (int64_t segment = job.segments() - 1; segment >= 0; --segment) {
    copy(job.segment_states + segment * job.state_size(), job.state_size(), job.tile_states);
    differentiate_segment(tile, segment);
  }
  write_state(job, job.grad, job.in.initial_grad);
}

// Takes jobs until none is left and calls kDo(tile, jobs, number) for each.
template <void (*kDo)(Tile& tile, const Jobs& jobs, int64_t i)>
void do_jobs(Jobs& jobs) {
  const FlushDenormals guard;
  Fetcher fetcher;
  Scratch scratch;
  fetcher.pace *= jobs.blocks.count();
  Tile tile(static_cast<const ScanKernel&>(*jobs.scan), round_up(jobs.blocks.values, kLanes), fetcher, scratch);
  for (int64_t i = jobs.take(); i < jobs.count; i = jobs.take()) kDo(tile, jobs, i);
}

void do_stream(Tile& tile, const Jobs& jobs, int64_t i) {
  place(tile.stored, jobs, i);
  tile.stored.backward() ? backward(tile) : forward(tile);
}

void do_scan(Jobs& jobs) { do_jobs<do_stream>(jobs); }

// --- Splitting over time. ---

void place_pairs(Tile& tile, const Jobs& jobs, int64_t stream) {
  const int64_t before = stream * tile.stored.tiles() * kTokens * kTokens;
  tile.all_scores = jobs.scores + before;
  if (tile.stored.backward()) tile.all_pairs = jobs.pairs + before;
}

// Computes the pair products of a segment's tiles; every block of the state's columns needs them.
void find_pairs(Tile& tile, const Jobs& jobs, int64_t i) {
  Job& job = tile.stored;
  const Segment segment = place_segment(job, jobs, i);
  place_pairs(tile, jobs, segment.stream);
  for (int64_t n = segment.begin; n < segment.end; ++n) {
    const Stretch at = job.stretch(n);
    turn_to(tile, n);
    read_keys(job, at);
    read_held(tile, at);
    if (job.backward()) read_reads(job, at);
    look_ahead(job, n + 1, job.backward());
    score_one(tile.held);
    if (job.backward()) score_pairs(job);
  }
}

void do_pairs(Jobs& jobs) { do_jobs<find_pairs>(jobs); }

// Computes the gradients at the segments' ends as `differentiate` passes them on.
void find_grads(Tile& tile) {
  Job& job = tile.stored;
  read_final_grad(job);
  for (int64_t i = job.tiles() - 1; i >= 0; --i) {
    if (!keep_grad(job, i)) return;
    const Stretch at = job.stretch(i);
    read_keys(job, at);
    read_held(tile, at);
    read_reads(job, at);
    look_ahead(job, i - 1, false);
    turn_to(tile, i);
    solve_back(tile);
    advance(job, job.entering, {job.w, job.values}, job.through, job.grad, job.grad, 2 * kTokens);
  }
}

void find_bounds(Tile& tile, const Jobs& jobs, int64_t i) {
  Job& job = tile.stored;
  const bool forwards = open_block(job, jobs, i);
  const int64_t block = job.backward() ? i / 2 : i;
  if (job.backward()) tile.all_errors = jobs.errors + block * job.tiles() * kTokens * job.values;
  place_pairs(tile, jobs, block / jobs.blocks.count());
  forwards ? find_errors(tile, true) : find_grads(tile);
}

void do_bounds(Jobs& jobs) { do_jobs<find_bounds>(jobs); }

// Assembles a segment's errors from the stream's blocks of columns.
void gather_errors(Tile& tile, const Jobs& jobs, const Segment& segment) {
  const Kept& kept = jobs.kept;
  const int64_t tiles = tile.stored.tiles(), width = round_up(kept.blocks.values, kLanes), values = tile.stored.values;
  const int64_t rows = (segment.end - segment.begin) * kTokens, first = segment.stream * kept.blocks.count();
  for (int64_t block = 0; block < kept.blocks.count(); ++block) {
    const float* from = jobs.errors + ((first + block) * tiles + segment.begin) * kTokens * width;
    const int64_t column = kept.blocks.value(block), columns = values - column < width ? values - column : width;
    for (int64_t i = 0; i < rows; ++i) copy(from + i * width, columns, tile.all_errors + i * values + column);
  }
}

void do_segment(Tile& tile, const Jobs& jobs, int64_t i) {
  const Segment segment = open_segment(tile.stored, jobs, i);
  place_pairs(tile, jobs, segment.stream);
  if (tile.stored.backward()) {
    // Only this segment's errors are in memory.
    const int64_t pairs = segment.begin * kTokens * kTokens;
    tile.first = segment.begin;
    tile.all_scores += pairs;
    tile.all_pairs += pairs;
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
  if (leaves_caches(in)) hwy::FlushStream();
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
HWY_EXPORT(do_pairs);
HWY_EXPORT(do_bounds);
HWY_EXPORT(do_segments);
HWY_EXPORT(do_steps);

void work(void* jobs, int64_t) { HWY_DYNAMIC_DISPATCH(do_scan)(*static_cast<Jobs*>(jobs)); }
void work_pairs(void* jobs, int64_t) { HWY_DYNAMIC_DISPATCH(do_pairs)(*static_cast<Jobs*>(jobs)); }
void work_bounds(void* jobs, int64_t) { HWY_DYNAMIC_DISPATCH(do_bounds)(*static_cast<Jobs*>(jobs)); }
void work_segments(void* jobs, int64_t) { HWY_DYNAMIC_DISPATCH(do_segments)(*static_cast<Jobs*>(jobs)); }
void work_step(void* jobs, int64_t) { HWY_DYNAMIC_DISPATCH(do_steps)(*static_cast<Jobs*>(jobs)); }

void run_over_time(const ScanKernel& scan, const kernels::Parallel& parallel) {
  const gated::OverTime plan(scan, parallel.threads, /*by_rows=*/false);
  const kernels::Blocks& blocks = plan.kept.blocks;
  const int64_t rows = plan.streams * kernels::padded(scan.tokens), pairs = rows * 16;
  const int64_t errors = scan.dx.data ? rows * blocks.count() * blocks.values : 0;
  const kernels::Shared memory(plan.size() + plan.directions * pairs + errors);
  float *const kept = memory.data(), *const scores = kept + plan.size(),
               *const first_reads = scores + (plan.directions - 1) * pairs;
  const auto jobs = [&](const gated::Jobs& of) { return Jobs{of, scores, first_reads, first_reads + pairs}; };
  share(jobs(plan.segments(kept)), parallel, &work_pairs);
  share(jobs(plan.blocks(kept)), parallel, &work_bounds);
  share(jobs(plan.segments(kept)), parallel, &work_segments);
}

}  // namespace

void run_scan(const ScanKernel& scan, const kernels::Parallel& parallel) {
  const Jobs whole{gated::scan_jobs(scan, !scan.dx.data, parallel.threads)};
  const bool pays = gated::pays_over_time(whole, parallel.threads, scan.dx.data ? 2 : 2.8);
  pays ? run_over_time(scan, parallel) : share(whole, parallel, &work);
}

void run_step(const ScanKernel& scan, const kernels::Parallel& parallel) {
  share(Jobs{gated::step_jobs(scan)}, parallel, &work_step);
}

}  // namespace cortado::delta
#endif
