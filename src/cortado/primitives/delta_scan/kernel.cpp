// The delta scan in tiles of 16 tokens; README.md, "The kernel". Compiled once for each instruction set.
#include "cortado/primitives/delta_scan/kernel.h"

#define HWY_DISABLED_TARGETS HWY_SSSE3
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cortado/primitives/delta_scan/kernel.cpp"
#include <hwy/foreach_target.h>
// after foreach_target
#include "cortado/primitives/delta_scan/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace cortado::delta {
namespace HWY_NAMESPACE {
namespace {

void forward(Tile& tile) {
  Job& job = tile.stored;
  read_state(job, job.in.initial, job.state);
  for (int64_t i = 0; i < job.tiles(); ++i) {
    const Stretch at = job.stretch(i);
    read_writes(job, at);
    read_held(tile, at);
    read_reads(job, at);
    look_ahead(job, i + 1, true);
    score_pairs(tile.held);
    find_corrections(tile, job.state, tile.errors);
    score_pairs(job);
    job.v_rows = job.v;
    job.v_row = job.values;
    read_by_keys(job, at);
    advance(job, job.leaving, job.v, job.values, job.state, job.state);
  }
  write_state(job, job.state, job.in.final_state);
}

void do_scan(Jobs& jobs) {
  const ScanKernel& in = static_cast<const ScanKernel&>(*jobs.scan);
  const FlushDenormals guard;
  Fetcher fetcher;
  Tile tile(in, round_up(jobs.block, kLanes));
  Scratch scratch;
  tile.stored.fetcher = &fetcher;
  lay_out(tile, scratch);
  for (int64_t i = jobs.take(); i < jobs.count; i = jobs.take()) {
    place(tile.stored, jobs, i);
    forward(tile);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace cortado::delta
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cortado::delta {

namespace {

HWY_EXPORT(do_scan);

void work(void* jobs, int64_t) { HWY_DYNAMIC_DISPATCH(do_scan)(*static_cast<gated::Jobs*>(jobs)); }

}  // namespace

void run_scan(const ScanKernel& scan, const kernels::Parallel& parallel) {
  gated::run(gated::scan_jobs(scan, !scan.dx.data, parallel.threads), parallel, &work);
}

}  // namespace cortado::delta
#endif
