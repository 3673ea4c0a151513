// Latte in tiles of 16 tokens without decays inside a tile; README.md, "The kernel". Compiled once per instruction set.
#include "cortado/primitives/latte_scan/kernel.h"

#include "cortado/primitives/kernels/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cortado/primitives/latte_scan/kernel.cpp"
#include <hwy/foreach_target.h>
// after foreach_target
#include "cortado/primitives/kernels/over_time.h"
#include "cortado/primitives/latte_scan/gradient-inl.h"
#include "cortado/primitives/latte_scan/tile-inl.h"

#ifndef CORTADO_LATTE_SCAN_KERNEL_ONCE
#define CORTADO_LATTE_SCAN_KERNEL_ONCE
namespace cortado::latent {
namespace {

// Kept when time is split: the sums at the segments' starts and the gradients at their ends. In a backward also per
// token ∂L/∂α [streams][tokens, keys] and the query's softmax [streams][tokens][2], and per tile α and the maximum at
// its start [streams][tiles][2, keys].
struct LatteKept : kernels::Kept {
  float *dalphas = nullptr, *scales = nullptr, *softmaxes = nullptr;
  using Kept::Kept;
};

// The jobs of all threads: heads of rows, blocks of their states, or segments of their time. Threads take one after the
// other.
struct Jobs {
  const LatteKernel* call;
  const LatteGradients* gradients;  // backward only
  kernels::Blocks blocks;
  int64_t count, next = 0;
  LatteKept kept = {};

  int64_t take() { return __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED); }
};

}  // namespace
}  // namespace cortado::latent
#endif

HWY_BEFORE_NAMESPACE();
namespace cortado::latent {
namespace HWY_NAMESPACE {
namespace {

// One token: the state is read once and written once, in place.
template <int kCount>
HWY_INLINE void step_columns(const Job& job, const float* from, float* to, int64_t j, int64_t n) {
  const Floats d;
  Vec sums[kCount], v[kCount];
  for (int c = 0; c < kCount; ++c) {
    sums[c] = hn::Zero(d);
    v[c] = hn::Load(d, job.v + j + c * kLanes);
  }
  for (int64_t l = 0; l < job.in.latents; ++l) {
    const Vec scale = hn::Set(d, job.scale[l]), x = hn::Set(d, job.x[l]), y = hn::Set(d, job.y[l]);
#pragma GCC unroll 4
    for (int c = 0; c < kCount; ++c) {
      const int64_t i = l * job.in.values + j + c * kLanes;
      Vec s = hn::Mul(x, v[c]);
      if (from) s = hn::MulAdd(scale, load_some(from + i, n), s);
      if (to) store_some(s, to + i, n);
      sums[c] = hn::MulAdd(y, s, sums[c]);
    }
  }
  for (int c = 0; c < kCount; ++c) hn::Store(sums[c], d, job.o + j + c * kLanes);
}

void step(const Job& job) {
  const LatteKernel& in = job.in;
  const Stretch at = job.stretch(0, 1);
  read_tile(in.theta, at, 0, in.latents, 1, job.theta, job.all);
  read_tile(in.query, at, 0, in.latents, 1, job.y, job.keys);
  read_tile(in.v, at, 0, in.values, 1, job.v, job.values);
  find_top(job, 1, job.sums);
  write_keys(job, 1, job.sums, job.sums);
  write_queries<false>(job, 1);
  const float* from = in.state.data ? state_address(job, in.state, in.values) : nullptr;
  float* to = job.head % in.last_state.repeat == 0 ? state_address(job, in.last_state, in.values) : nullptr;
  int64_t j = 0;
  for (; j + 4 * kLanes <= in.values; j += 4 * kLanes) step_columns<4>(job, from, to, j, kLanes);
  for (; j + kLanes <= in.values; j += kLanes) step_columns<1>(job, from, to, j, kLanes);
  if (j < in.values) step_columns<1>(job, from, to, j, in.values - j);
  write_tile(job.o, job.values, in.o, at, 0, in.values);
}

void write_scales(const Job& job) {
  write_latents(job, job.sums.alpha, job.in.last_normalizer);
  write_latents(job, job.sums.maximum, job.in.last_maximum);
}

// Computes tiles `begin` to `end`, continuing from job.sums.
void run_tiles(const Job& job, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    run_tile<Want::kOutputs>(job, i * kTokens, tile_size(job, i), job.sums, job.sums);
  }
}

void run_forward(const Job& job) {
  read_sums(job, job.sums);
  if (job.length == 1) {
    step(job);
  } else {
    read_state(job, job.in.state, job.sums.state);
    run_tiles(job, 0, tiles(job));
    write_state(job, job.sums.state, job.in.last_state);
  }
  write_scales(job);
}

// Takes jobs until none is left and calls kDo(job, jobs, number) for each.
template <void (*kDo)(Reverse& job, const Jobs& jobs, int64_t i)>
void do_jobs(Jobs& jobs) {
  const LatteKernel& in = *jobs.call;
  const FlushDenormals guard;
  Fetcher fetcher;
  Scratch scratch;
  fetcher.pace *= jobs.blocks.count();
  const int64_t keys = round_up(jobs.blocks.keys, 16), values = round_up(jobs.blocks.values, kLanes);
  Reverse job{{{.keys = keys, .values = values, .fetcher = &fetcher}, in}};
  job.all = round_up(in.latents, 16);
  job.out = jobs.gradients;
  job.out || jobs.kept.states ? lay_out_reverse(job, scratch) : lay_out(job, scratch);
  for (int64_t i = jobs.take(); i < jobs.count; i = jobs.take()) kDo(job, jobs, i);
}

void do_stream(Reverse& job, const Jobs& jobs, int64_t i) {
  place(job, jobs.blocks, i);
  job.out ? run_backward(job) : run_forward(job);
}

void run_jobs(Jobs& jobs) { do_jobs<do_stream>(jobs); }

// --- Splitting over time. ---

void find_block_sums(Reverse& job, const Jobs& jobs, int64_t i) {
  place(job, jobs.blocks, i);
  job.segments = jobs.kept.of(jobs.kept.states, i);
  find_sums(job);
}

void run_sums(Jobs& jobs) { do_jobs<find_block_sums>(jobs); }

// Points to what is kept for all tokens of a stream.
void open_stream(Reverse& job, const Jobs& jobs, int64_t stream) {
  job.dalphas = jobs.kept.dalphas + stream * job.in.tokens * job.all;
  job.softmaxes = reinterpret_cast<Softmax*>(jobs.kept.softmaxes) + stream * job.in.tokens;
}

// A segment of a stream: its number and tiles; the sums at its start come from the stream's blocks.
struct Segment {
  int64_t stream, number, begin, end;

  Segment(Reverse& job, const Jobs& jobs, int64_t i)
      : stream(i / jobs.kept.segments), number(i % jobs.kept.segments), begin(number * kSegment) {
    place(job, jobs.blocks, stream);
    end = begin + kSegment < tiles(job) ? begin + kSegment : tiles(job);
    if (job.out) open_stream(job, jobs, stream);
  }
  void gather(const Reverse& job, const Kept& kept, const float* all, float* to) const {
    const Blocks& blocks = kept.blocks;
    const int64_t width = round_up(blocks.values, kLanes), rows = round_up(blocks.keys, 16);
    const Sums sums = job.sums_at(to);
    kept.gather(all, stream, number, job.keys, width, job.values, to);
    for (int64_t i = 0; i < blocks.count(); i += blocks.across) {
      const float* alpha = kept.of(all, stream * blocks.count() + i) + number * kept.room + rows * width;
      const int64_t key = blocks.key(i);
      copy(alpha, least(job.keys - key, rows), sums.alpha + key);
      if (i == 0) copy(alpha + rows, job.all, sums.maximum);
    }
  }
};

void run_segment(Reverse& job, const Jobs& jobs, int64_t i) {
  const Segment segment(job, jobs, i);
  segment.gather(job, jobs.kept, jobs.kept.states, job.sums.state);
  run_tiles(job, segment.begin, segment.end);
  if (segment.end < tiles(job)) return;
  write_state(job, job.sums.state, job.in.last_state);
  write_scales(job);
}

void run_segments(Jobs& jobs) { do_jobs<run_segment>(jobs); }

// Where α (of this block) and the maximum at each tile's start are kept; no state.
Sums scales_at(const Reverse& job, const Jobs& jobs, int64_t stream, int64_t tile) {
  float* alpha = jobs.kept.scales + (stream * tiles(job) + tile) * 2 * job.all;
  return {nullptr, alpha + job.key, alpha + job.all};
}

void differentiate_queries_of(Reverse& job, const Jobs& jobs, int64_t i) {
  const Segment segment(job, jobs, i);
  segment.gather(job, jobs.kept, jobs.kept.states, job.tiles);
  differentiate_segment<Step::kQueries>(job, segment.number);
  for (int64_t tile = segment.begin; tile < segment.end; ++tile) {
    const float* kept = job.kept(job.tiles, tile - segment.begin).alpha;
    copy(kept, 2 * job.keys, scales_at(job, jobs, segment.stream, tile).alpha);
  }
}

void run_queries(Jobs& jobs) { do_jobs<differentiate_queries_of>(jobs); }

// Computes the gradients at the segments' ends; they are stored where the sums are in their memory.
void find_block_grads(Reverse& job, const Jobs& jobs, int64_t i) {
  const int64_t stream = i / jobs.blocks.count();
  place(job, jobs.blocks, i);
  open_stream(job, jobs, stream);
  read_last_grads(job);
  for (int64_t tile = tiles(job) - 1; tile >= 0; --tile) {
    if (tile % kSegment == kSegment - 1 || tile == tiles(job) - 1) {
      float* to = jobs.kept.of(jobs.kept.grads, i) + tile / kSegment * job.sums_size();
      copy(job.grad, job.keys * job.values, to);
      copy(job.grad_alpha, job.keys, job.sums_at(to).alpha);
    }
    if (tile < kSegment) return;
    differentiate<Step::kBounds>(job, tile * kTokens, tile_size(job, tile), scales_at(job, jobs, stream, tile));
  }
}

void run_grads(Jobs& jobs) { do_jobs<find_block_grads>(jobs); }

void differentiate_rest(Reverse& job, const Jobs& jobs, int64_t i) {
  const Segment segment(job, jobs, i);
  segment.gather(job, jobs.kept, jobs.kept.grads, job.tiles);
  copy(job.tiles, job.keys * job.values, job.grad);
  copy(job.kept(job.tiles, 0).alpha, job.keys, job.grad_alpha);
  for (int64_t tile = segment.end - 1; tile >= segment.begin; --tile) {
    const Sums before = scales_at(job, jobs, segment.stream, tile);
    differentiate<Step::kRest>(job, tile * kTokens, tile_size(job, tile), before);
  }
  if (segment.number == 0) write_first_grads(job);
}

void run_rest(Jobs& jobs) { do_jobs<differentiate_rest>(jobs); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace cortado::latent
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cortado::latent {

namespace {

using kernels::share;

HWY_EXPORT(run_jobs);
HWY_EXPORT(run_sums);
HWY_EXPORT(run_segments);
HWY_EXPORT(run_queries);
HWY_EXPORT(run_grads);
HWY_EXPORT(run_rest);

void work(void* jobs, int64_t) { HWY_DYNAMIC_DISPATCH(run_jobs)(*static_cast<Jobs*>(jobs)); }
void work_sums(void* jobs, int64_t) { HWY_DYNAMIC_DISPATCH(run_sums)(*static_cast<Jobs*>(jobs)); }
void work_segments(void* jobs, int64_t) { HWY_DYNAMIC_DISPATCH(run_segments)(*static_cast<Jobs*>(jobs)); }
void work_queries(void* jobs, int64_t) { HWY_DYNAMIC_DISPATCH(run_queries)(*static_cast<Jobs*>(jobs)); }
void work_grads(void* jobs, int64_t) { HWY_DYNAMIC_DISPATCH(run_grads)(*static_cast<Jobs*>(jobs)); }
void work_rest(void* jobs, int64_t) { HWY_DYNAMIC_DISPATCH(run_rest)(*static_cast<Jobs*>(jobs)); }

void run_over_time(const LatteKernel& call, const LatteGradients* gradients, const kernels::Parallel& parallel) {
  const int64_t streams = call.rows * call.heads, keys = kernels::padded(call.latents);
  const kernels::Blocks rows = kernels::row_blocks(call.latents, call.values, streams, parallel.threads),
                        whole = kernels::whole_state(call.latents, call.values);
  LatteKept kept(call.tokens, rows, kernels::padded(rows.keys) + keys);
  const int64_t blocks = streams * rows.count(), all = blocks * kept.segments * kept.room;
  const int64_t tokens = streams * call.tokens, tiles = streams * kernels::divided(call.tokens, 16);
  const kernels::Shared memory(gradients ? 2 * all + tokens * (keys + 2) + tiles * 2 * keys : all);
  kept.states = memory.data();
  if (gradients) {
    kept.grads = kept.states + all;
    kept.dalphas = kept.grads + all;
    kept.scales = kept.dalphas + tokens * keys;
    kept.softmaxes = kept.scales + tiles * 2 * keys;
  }
  const Jobs parts{&call, gradients, rows, blocks, 0, kept};
  const Jobs segments{&call, gradients, whole, streams * kept.segments, 0, kept};
  share(parts, parallel, &work_sums);
  if (!gradients) return share(segments, parallel, &work_segments);
  share(segments, parallel, &work_queries);
  share(parts, parallel, &work_grads);
  share(segments, parallel, &work_rest);
}

void run(const LatteKernel& call, const LatteGradients* gradients, const kernels::Parallel& parallel) {
  const int64_t streams = call.rows * call.heads;
  if (!call.bounds && kernels::pays_over_time(streams, call.tokens, parallel.threads, 2.5)) {
    return run_over_time(call, gradients, parallel);
  }
  share(Jobs{&call, gradients, kernels::whole_state(call.latents, call.values), streams}, parallel, &work);
}

}  // namespace

void run_latte(const LatteKernel& call, const kernels::Parallel& parallel) { run(call, nullptr, parallel); }

void run_latte_backward(const LatteKernel& call, const LatteGradients& gradients, const kernels::Parallel& parallel) {
  run(call, &gradients, parallel);
}

}  // namespace cortado::latent
#endif
