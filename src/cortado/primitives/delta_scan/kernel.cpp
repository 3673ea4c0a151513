// The delta scan in tiles of 16 tokens; README.md, "The kernel". Compiled once for each instruction set.
#include "cortado/primitives/delta_scan/kernel.h"

#include "cortado/primitives/kernels/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cortado/primitives/delta_scan/kernel.cpp"
#include <hwy/foreach_target.h>
// after foreach_target
#include "cortado/primitives/delta_scan/step-inl.h"
#include "cortado/primitives/delta_scan/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace cortado::delta {
namespace HWY_NAMESPACE {
namespace {

// The state behind a tile, from that at its start.
void store(const Job& job, const float* from, float* to) {
  advance(job, job.leaving, {job.v, job.values}, job.through, from, to);
}

void forward(Tile& tile) {
  Job& job = tile.stored;
  read_state(job, job.in.initial, job.state);
  for (int64_t i = 0; i < job.tiles(); ++i) {
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
  write_state(job, job.state, job.in.final_state);
}

// The errors and pairs of tile i in their place.
void turn_to(Tile& tile, int64_t i) {
  tile.errors = tile.all_errors + i * kTokens * tile.stored.values;
  tile.held.scores = tile.all_scores + i * kTokens * kTokens;
}

// All tiles' errors, and the states at the segments' starts.
void find_errors(Tile& tile) {
  Job& job = tile.stored;
  const int64_t size = job.state_size(), tiles = job.tiles();
  read_state(job, job.in.initial, job.segment_states);
  for (int64_t i = 0; i < tiles; ++i) {
    const Stretch at = job.stretch(i);
    read_writes(job, at);
    read_held(tile, at);
    look_ahead(job, i + 1, false);
    turn_to(tile, i);
    score_pairs(tile.held);
    float* first = job.segment_states + i / kSegment * size;
    const float* state = i % kSegment == 0 ? first : job.state;
    find_corrections(tile, state);
    if (i + 1 < tiles) store(job, state, i % kSegment == kSegment - 1 ? first + size : job.state);
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

// Forwards for the errors; then each segment of tiles, from the last, forwards for its states and back.
void backward(Tile& tile) {
  Job& job = tile.stored;
  const int64_t tiles = job.tiles(), size = job.state_size();
  find_errors(tile);
  read_final_grad(job);
  for (int64_t start = (tiles - 1) / kSegment * kSegment; start >= 0; start -= kSegment) {
    const int64_t count = tiles - start < kSegment ? tiles - start : kSegment;
    copy(job.segment_states + start / kSegment * size, size, job.tile_states);
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
  write_state(job, job.grad, job.in.initial_grad);
}

void do_scan(Jobs& jobs) {
  const ScanKernel& in = static_cast<const ScanKernel&>(*jobs.scan);
  const FlushDenormals guard;
  Fetcher fetcher;
  Scratch scratch;
  Tile tile(in, round_up(jobs.block, kLanes), fetcher, scratch);
  for (int64_t i = jobs.take(); i < jobs.count; i = jobs.take()) {
    place(tile.stored, jobs, i);
    in.dx.data ? backward(tile) : forward(tile);
  }
}

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

HWY_EXPORT(do_scan);
HWY_EXPORT(do_steps);

void work(void* jobs, int64_t) { HWY_DYNAMIC_DISPATCH(do_scan)(*static_cast<gated::Jobs*>(jobs)); }
void work_step(void* jobs, int64_t) { HWY_DYNAMIC_DISPATCH(do_steps)(*static_cast<gated::Jobs*>(jobs)); }

}  // namespace

void run_scan(const ScanKernel& scan, const kernels::Parallel& parallel) {
  gated::run(gated::scan_jobs(scan, !scan.dx.data, parallel.threads), parallel, &work);
}

void run_step(const ScanKernel& scan, const kernels::Parallel& parallel) {
  gated::run(gated::step_jobs(scan), parallel, &work_step);
}

}  // namespace cortado::delta
#endif
