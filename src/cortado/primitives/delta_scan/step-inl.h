// One token: the state is read once for its prediction at k, then read again and written. Part of kernel.cpp, compiled
// once per instruction set (hence the unusual guard).
#if defined(CORTADO_DELTA_SCAN_STEP_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef CORTADO_DELTA_SCAN_STEP_INL_H
#undef CORTADO_DELTA_SCAN_STEP_INL_H
#else
#define CORTADO_DELTA_SCAN_STEP_INL_H
#endif

#include "cortado/primitives/delta_scan/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace cortado::delta {
namespace HWY_NAMESPACE {
namespace {

// One state and one query. [K,V] before (null: 0) and after; `updated`: `after` is already written.
struct StepHead {
  const StepInputs& inputs;  // y, x, v and a are inputs; `read` is output
  const float* before;
  float* after;
  int64_t keys, values;
  float beta;
  bool updated, past_caches;
};

// Processes whole vectors, or with kPart the first n elements.
template <bool kPart>
HWY_INLINE Vec load_step(const float* from, int64_t n) {
  const Floats d;
  if constexpr (!kPart) return hn::LoadU(d, from);
  HWY_ALIGN float part[kLanes];
  read_row(from, 1, n, 1.0f, part, kLanes);
  return hn::Load(d, part);
}

template <bool kPart>
HWY_INLINE void store_step(Vec x, float* to, int64_t n) {
  const Floats d;
  if constexpr (!kPart) return hn::StoreU(x, d, to);
  HWY_ALIGN float part[kLanes];
  hn::Store(x, d, part);
  copy_elements(part, 1, to, 1, n);
}

// Processes kVecs vectors of columns from column j on, or with kPart the last n columns.
template <int kVecs, bool kPart = false>
HWY_INLINE void step_columns(const StepHead& s, float* read, int64_t j, int64_t n = 0) {
  const Floats d;
  const StepInputs& in = s.inputs;
  Vec u[kVecs], sum[kVecs];
#pragma GCC unroll 4
  for (int c = 0; c < kVecs; ++c) u[c] = sum[c] = hn::Zero(d);
  for (int64_t k = 0; s.before && !s.updated && k < s.keys; ++k) {
    const Vec key = hn::Set(d, in.a[k] * in.x[k]);
    const float* row = s.before + k * s.values + j;
#pragma GCC unroll 4
    for (int c = 0; c < kVecs; ++c) u[c] = hn::MulAdd(key, load_step<kPart>(row + c * kLanes, n), u[c]);
  }
#pragma GCC unroll 4
  for (int c = 0; c < kVecs; ++c) {
    u[c] = hn::Mul(hn::Set(d, s.beta), hn::Sub(hn::Load(d, in.v + j + c * kLanes), u[c]));
  }
  for (int64_t k = 0; k < s.keys; ++k) {
    const int64_t row = k * s.values + j;
#pragma GCC unroll 4
    for (int c = 0; c < kVecs; ++c) {
      Vec state = hn::Mul(hn::Set(d, in.x[k]), u[c]);
      if (s.updated) {
        state = load_step<kPart>(s.after + row + c * kLanes, n);
      } else if (s.before) {
        state = hn::MulAdd(hn::Set(d, in.a[k]), load_step<kPart>(s.before + row + c * kLanes, n), state);
      }
      if (!s.updated && s.past_caches) {
        hn::Stream(state, d, s.after + row + c * kLanes);
      } else if (!s.updated) {
        store_step<kPart>(state, s.after + row + c * kLanes, n);
      }
      sum[c] = hn::MulAdd(hn::Set(d, in.y[k]), state, sum[c]);
    }
  }
#pragma GCC unroll 4
  for (int c = 0; c < kVecs; ++c) hn::Store(sum[c], d, read + j + c * kLanes);
}

// Computes state number i, which one or several heads read.
inline void step_state(const ScanKernel& in, StepInputs& inputs, int64_t i) {
  const int64_t states = in.final_state.heads, shared = in.heads / states, size = in.keys * in.values;
  const int64_t row = i / states, head = i % states * shared;
  const Stretch first{row, head, 0, 1, 1};
  read_token(in.beta, first, 1, 1, inputs.w);
  read_token(in.x, first, in.keys, 1, inputs.x);
  read_token(in.v, first, in.values, 1, inputs.v);
  read_step_gates(in, first, inputs.a);
  for (int64_t q = 0; q < shared; ++q) {
    const Stretch at{row, head + q, 0, 1, 1};
    read_token(in.y, at, in.keys, in.y_factor, inputs.y);
    const StepHead s{.inputs = inputs,
                     .before = in.initial.data ? in.initial.data + i * size : nullptr,
                     .after = in.final_state.data + i * size,
                     .keys = in.keys,
                     .values = in.values,
                     .beta = inputs.w[0],
                     .updated = q > 0,
                     .past_caches = shared == 1 && leaves_caches(in)};
    int64_t j = 0;
    for (; j + 4 * kLanes <= s.values; j += 4 * kLanes) step_columns<4>(s, inputs.read, j);
    for (; j + kLanes <= s.values; j += kLanes) step_columns<1>(s, inputs.read, j);
    if (j < s.values) step_columns<1, true>(s, inputs.read, j, s.values - j);
    write_tile(inputs.read, round_up(in.values, kLanes), in.dw, at, 0, in.values);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace cortado::delta
HWY_AFTER_NAMESPACE();

#endif
