// One token: the state is read and written once. Part of kernel.cpp, compiled once per instruction set (hence the
// unusual guard).
#if defined(CORTADO_GATED_SCAN_STEP_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef CORTADO_GATED_SCAN_STEP_INL_H
#undef CORTADO_GATED_SCAN_STEP_INL_H
#else
#define CORTADO_GATED_SCAN_STEP_INL_H
#endif

#include "cortado/primitives/gated_scan/job-inl.h"

HWY_BEFORE_NAMESPACE();
namespace cortado::gated {
namespace HWY_NAMESPACE {
namespace {

// One head's inputs as rows of floats, padded with zeros; gates as factors.
struct StepInputs {
  HWY_ALIGN float y[kStepWidth], x[kStepWidth], w[kStepWidth], v[kStepWidth], a[kStepWidth], bonus[kStepWidth];
  HWY_ALIGN float state[kStepWidth], read[kStepWidth];  // a row of the state; the read
};

inline void read_token(const Timed& x, const Stretch& at, int64_t n, float factor, float* to) {
  if (!x.data) return;
  const int64_t width = round_up(n, kLanes);
  if (x.type == Element::kFloat32) {
    read_row(address<float>(x, at, 0), x.inner, n, factor, to, width);
  } else if (x.type == Element::kBFloat16) {
    read_row(address<BFloat16>(x, at, 0), x.inner, n, factor, to, width);
  } else {
    read_row(address<hwy::float16_t>(x, at, 0), x.inner, n, factor, to, width);
  }
}

inline void read_step_gates(const ScanKernel& in, const Stretch& at, float* a) {
  const Floats d;
  const int64_t width = round_up(in.keys, kLanes);
  if (!in.g.data) return fill(a, width, 1);
  read_token(in.g, at, in.gate_per_channel ? in.keys : 1, 1, a);
  if (!in.gate_per_channel) fill(a, width, a[0]);
  for (int64_t k = 0; k < width && !in.gates_are_factors; k += kLanes) {
    hn::Store(exp_of(d, hn::Load(d, a + k)), d, a + k);
  }
}

// Returns Σ row ⊙ w of a padded row.
HWY_INLINE float inner_product(const float* row, const float* w, int64_t width) {
  const Floats d;
  Vec sum = hn::Zero(d);
  for (int64_t j = 0; j < width; j += kLanes) sum = hn::MulAdd(hn::Load(d, row + j), hn::Load(d, w + j), sum);
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

// to += factor · row
HWY_INLINE void add_scaled(const float* row, float factor, float* to, int64_t width) {
  const Floats d;
  for (int64_t j = 0; j < width; j += kLanes) {
    hn::Store(hn::MulAdd(hn::Set(d, factor), hn::Load(d, row + j), hn::Load(d, to + j)), d, to + j);
  }
}

// As step_head()'s loop for a state whose rows are whole vectors, without a bonus, where `before` becomes `after`.
// `past_caches`: see kernels::goes_past_caches.
HWY_INLINE void step_rows(const ScanKernel& in, StepInputs& s, const float* before, float* after, bool past_caches) {
  const Floats d;
  for (int64_t k = 0; k < in.keys; ++k) {
    const int64_t row = k * in.values;
    const Vec kept = hn::Set(d, s.a[k]), x = hn::Set(d, s.x[k]), y = hn::Set(d, s.y[k]);
    Vec sum = hn::Zero(d);
    for (int64_t j = 0; j < in.values; j += kLanes) {
      const Vec old = before ? hn::Mul(kept, hn::LoadU(d, before + row + j)) : hn::Zero(d);
      const Vec now = hn::MulAdd(x, hn::Load(d, s.v + j), old);
      past_caches ? hn::Stream(now, d, after + row + j) : hn::StoreU(now, d, after + row + j);
      if (in.dw.data) {
        hn::Store(hn::MulAdd(y, now, hn::Load(d, s.read + j)), d, s.read + j);
      } else {
        sum = hn::MulAdd(now, hn::Load(d, s.w + j), sum);
      }
    }
    if (!in.dw.data) s.read[k] = hn::GetLane(hn::SumOfLanes(d, sum));
  }
}

// Whether the new states are so large that they are not in the caches any more when the next token comes.
inline bool leaves_caches(const ScanKernel& in) {
  constexpr int64_t kMany = int64_t{1} << 17;  // half of a second-level cache
  return in.values % 64 == 0 && in.rows * in.final_state.heads * in.keys * in.values >= kMany &&
         reinterpret_cast<uintptr_t>(in.final_state.data) % 64 == 0;
}

// Computes head `head` of a row. Its state `before` (null: 0) becomes `after`, unless another head that shares the
// state has already written it.
inline void step_head(const ScanKernel& in, StepInputs& s, const Stretch& at, const float* before, float* after,
                      bool updated) {
  const Floats d;
  const int64_t width = round_up(in.values, kLanes);
  read_token(in.y, at, in.keys, in.y_factor, s.y);
  read_token(in.w, at, in.values, in.w_factor, s.w);
  fill(s.read, in.dw.data ? width : round_up(in.keys, kLanes), 0);
  float self = 0;
  const bool whole = in.values % kLanes == 0 && !in.bonus && !updated;
  if (whole) step_rows(in, s, before, after, leaves_caches(in));
  for (int64_t k = 0; k < in.keys && !whole; ++k) {
    const bool old = in.bonus || !updated;
    const float* from = old ? before : after;
    from ? read_row(from + k * in.values, 1, in.values, 1.0f, s.state, width) : fill(s.state, width, 0);
    if (in.bonus) {
      self += s.y[k] * in.bonus[at.head * in.keys + k] * s.x[k];
      add_scaled(s.state, s.y[k], s.read, width);
    }
    if (!updated) {
      for (int64_t j = 0; j < width; j += kLanes) {
        const Vec kept = hn::Mul(hn::Set(d, s.a[k]), hn::Load(d, s.state + j));
        hn::Store(hn::MulAdd(hn::Set(d, s.x[k]), hn::Load(d, s.v + j), kept), d, s.state + j);
      }
      write_row(s.state, after + k * in.values, 1, in.values);
    }
    if (in.bonus) continue;
    if (in.dw.data) {
      add_scaled(s.state, s.y[k], s.read, width);
    } else {
      s.read[k] = inner_product(s.state, s.w, width);
    }
  }
  if (in.bonus) add_scaled(s.v, self, s.read, width);
  write_tile(s.read, round_up(in.dw.data ? in.values : in.keys, kLanes), in.dw.data ? in.dw : in.dy, at, 0,
             in.dw.data ? in.values : in.keys);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace cortado::gated
HWY_AFTER_NAMESPACE();

#endif
