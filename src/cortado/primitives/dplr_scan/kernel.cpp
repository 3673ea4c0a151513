// Forward: columns of the state are independent given q, k, a, b and g. A task has a strip of columns, whose state stays
// in the first-level cache, and goes through time. Backward: gradient-inl.h. Compiled once per instruction set.
#include "cortado/primitives/dplr_scan/kernel.h"

#include "cortado/primitives/kernels/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cortado/primitives/dplr_scan/kernel.cpp"
#include <hwy/foreach_target.h>
// after foreach_target
#include "cortado/primitives/dplr_scan/gradient-inl.h"
#include "cortado/primitives/dplr_scan/step-inl.h"
#include "cortado/primitives/kernels/scratch.h"
#include "cortado/primitives/kernels/tasks.h"
#include "cortado/primitives/kernels/tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace cortado::dplr {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using namespace kernels;
using namespace kernels::HWY_NAMESPACE;

int64_t strips(const ScanKernel& scan) { return (scan.values + kStrip - 1) / kStrip; }

// A strip of columns of one row and head.
struct Strip {
  const ScanKernel& in;
  int64_t row, head, column, columns;

  Strip(const ScanKernel& scan, int64_t task) : in(scan) {
    const int64_t per_head = strips(scan);
    row = task / (scan.heads * per_head);
    head = task / per_head % scan.heads;
    column = task % per_head * kStrip;
    columns = scan.values - column < kStrip ? scan.values - column : kStrip;
  }
  int64_t lanes(int64_t vector) const {
    const int64_t left = columns - vector * kLanes;
    return left < 0 ? 0 : left < kLanes ? left : kLanes;
  }
  // The strip within states [rows,H,K,V].
  float* of(const float* states) const {
    return const_cast<float*>(states) + (row * in.heads + head) * in.keys * in.values + column;
  }
  void read_state_rows(float* to) const {
    if (!in.start) return fill(to, in.keys * kStrip, 0);
    for (int64_t i = 0; i < in.keys; ++i) {
      read_row(of(in.start) + i * in.values, 1, columns, 1.0f, to + i * kStrip, kStrip);
    }
  }
  void write_state_rows(const float* from) const {
    for (int64_t i = 0; i < in.keys; ++i) write_row(from + i * kStrip, of(in.last) + i * in.values, 1, columns);
  }
};

void scan_task(const ScanKernel& scan, int64_t task) {
  const FlushDenormals guard;
  const Floats d;
  const Strip strip(scan, task);
  Scratch scratch;
  const int64_t padded = round_up(scan.keys, kLanes);
  float *decay = scratch.take(padded), *own = scratch.take(scan.keys * kStrip);
  const int64_t first = scan.first(strip.row), count = scan.count(strip.row);
  // A whole strip is read from the first state and written to the last one where they are.
  const bool whole = strip.columns == kStrip && count > 0;
  const Rows inside{own, kStrip}, last{whole ? strip.of(scan.last) : own, whole ? scan.values : kStrip};
  Rows from = inside;
  if (whole && scan.start) {
    from = {strip.of(scan.start), scan.values};
  } else {
    strip.read_state_rows(own);
  }
  for (int64_t t = 0; t < count; ++t) {
    const int64_t at = (first + t) * scan.heads + strip.head, keys = at * scan.keys,
                  values = at * scan.values + strip.column;
    read_row(scan.g + keys, 1, scan.keys, 1.0f, decay, padded);
    for (int64_t i = 0; i < padded; i += kLanes) hn::Store(exp_of(d, hn::Load(d, decay + i)), d, decay + i);
    Vec v[kVectors], o[kVectors];
#pragma GCC unroll 4
    for (int64_t j = 0; j < kVectors; ++j) v[j] = load_some(scan.v + values + j * kLanes, strip.lanes(j));
    const Rows to = t + 1 == count ? last : inside;
    advance({scan.q + keys, scan.k + keys, scan.a + keys, scan.b + keys, decay}, scan.keys, from, to, v, o);
#pragma GCC unroll 4
    for (int64_t j = 0; j < kVectors; ++j) {
      if (strip.lanes(j) > 0) {
        store_some(hn::Mul(o[j], hn::Set(d, scan.factor)), scan.o + values + j * kLanes, strip.lanes(j));
      }
    }
    from = to;
  }
  if (!whole) strip.write_state_rows(own);
}

void gradient_task(const ScanKernel& scan, int64_t task) {
  const FlushDenormals guard;
  Gradient(scan, task).run();
}

int64_t scan_tasks(const ScanKernel& scan) { return scan.rows * scan.heads * strips(scan); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace cortado::dplr
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cortado::dplr {

namespace {

HWY_EXPORT(scan_task);
HWY_EXPORT(scan_tasks);
HWY_EXPORT(gradient_task);

}  // namespace

void run_scan(const ScanKernel& scan, const kernels::Parallel& parallel) {
  kernels::run_tasks(scan, HWY_DYNAMIC_DISPATCH(scan_tasks)(scan), parallel, &HWY_DYNAMIC_DISPATCH(scan_task));
}

void run_gradient(const ScanKernel& scan, const kernels::Parallel& parallel) {
  kernels::run_tasks(scan, scan.rows * scan.heads, parallel, &HWY_DYNAMIC_DISPATCH(gradient_task));
}

}  // namespace cortado::dplr
#endif
