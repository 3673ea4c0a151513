// Forward: columns of the state are independent given q, k, a, b and g. A task has a strip of columns, whose state stays
// in the first-level cache, and goes through time. Backward: gradient-inl.h. Compiled once per instruction set.
#include "cortado/primitives/dplr_scan/kernel.h"

#include "cortado/primitives/kernels/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cortado/primitives/dplr_scan/kernel.cpp"
#include <hwy/foreach_target.h>
// after foreach_target
#include "cortado/primitives/dplr_scan/gradient-inl.h"
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

constexpr int64_t kVectors = 4, kStrip = kVectors * kLanes;  // columns of a task

int64_t strips(const ScanKernel& scan) { return (scan.values + kStrip - 1) / kStrip; }

// A state's rows in memory, `stride` floats apart.
struct Rows {
  float* data;
  int64_t stride;
};

// The K numbers of one token and head.
struct Keys {
  const float *q, *k, *a, *b, *decay;
};

// Σ_κ a_κ S_κ, for a strip: two rows at a time, so that sums do not wait for each other.
HWY_INLINE void read_state(const float* a, int64_t keys, const Rows& state, Vec* sums) {
  const Floats d;
  Vec even[kVectors], odd[kVectors];
#pragma GCC unroll 4
  for (int64_t j = 0; j < kVectors; ++j) even[j] = odd[j] = hn::Zero(d);
  int64_t i = 0;
  for (; i + 2 <= keys; i += 2) {
    const float *one = state.data + i * state.stride, *other = one + state.stride;
    const Vec x = hn::Set(d, a[i]), y = hn::Set(d, a[i + 1]);
#pragma GCC unroll 4
    for (int64_t j = 0; j < kVectors; ++j) {
      even[j] = hn::MulAdd(x, hn::LoadU(d, one + j * kLanes), even[j]);
      odd[j] = hn::MulAdd(y, hn::LoadU(d, other + j * kLanes), odd[j]);
    }
  }
  if (i < keys) {
    const Vec x = hn::Set(d, a[i]);
#pragma GCC unroll 4
    for (int64_t j = 0; j < kVectors; ++j) {
      even[j] = hn::MulAdd(x, hn::LoadU(d, state.data + i * state.stride + j * kLanes), even[j]);
    }
  }
#pragma GCC unroll 4
  for (int64_t j = 0; j < kVectors; ++j) sums[j] = hn::Add(even[j], odd[j]);
}

// Advances the state by one token, from `from` to `to`, which may be equal. Returns Σ_κ q_κ S_κ of the new state in o.
HWY_INLINE void advance(const Keys& token, int64_t keys, const Rows& from, const Rows& to, const Vec* v, Vec* o) {
  const Floats d;
  Vec u[kVectors];
  read_state(token.a, keys, from, u);
#pragma GCC unroll 4
  for (int64_t j = 0; j < kVectors; ++j) o[j] = hn::Zero(d);
  for (int64_t i = 0; i < keys; ++i) {
    const Vec w = hn::Set(d, token.decay[i]), b = hn::Set(d, token.b[i]), k = hn::Set(d, token.k[i]),
              q = hn::Set(d, token.q[i]);
    const float* old = from.data + i * from.stride;
    float* next = to.data + i * to.stride;
#pragma GCC unroll 4
    for (int64_t j = 0; j < kVectors; ++j) {
      const Vec added = hn::MulAdd(b, u[j], hn::Mul(k, v[j]));
      const Vec s = hn::MulAdd(w, hn::LoadU(d, old + j * kLanes), added);
      hn::StoreU(s, d, next + j * kLanes);
      o[j] = hn::MulAdd(q, s, o[j]);
    }
  }
}

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
