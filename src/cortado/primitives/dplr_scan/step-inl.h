// One token of the scan in a strip of a state's columns. Compiled once per instruction set (hence the unusual guard),
// everything with internal linkage.
#if defined(CORTADO_DPLR_SCAN_STEP_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef CORTADO_DPLR_SCAN_STEP_INL_H
#undef CORTADO_DPLR_SCAN_STEP_INL_H
#else
#define CORTADO_DPLR_SCAN_STEP_INL_H
#endif

#include "cortado/primitives/kernels/tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace cortado::dplr {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using namespace kernels;
using namespace kernels::HWY_NAMESPACE;

constexpr int64_t kVectors = 4, kStrip = kVectors * kLanes;  // columns that are computed together

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

// Advances the state by one token in place, where u = Σ_κ a_κ S_κ is known. Returns Σ_κ q_κ S_κ of the new state in o, and
// in u what the next token's a reads.
HWY_INLINE void advance_in_place(const Keys& token, const float* next, int64_t keys, const Rows& state, const Vec* v,
                                 Vec* u, Vec* o) {
  const Floats d;
  Vec read[kVectors];
#pragma GCC unroll 4
  for (int64_t j = 0; j < kVectors; ++j) read[j] = o[j] = hn::Zero(d);
  for (int64_t i = 0; i < keys; ++i) {
    const Vec w = hn::Set(d, token.decay[i]), b = hn::Set(d, token.b[i]), k = hn::Set(d, token.k[i]),
              q = hn::Set(d, token.q[i]), a = hn::Set(d, next[i]);
    float* row = state.data + i * state.stride;
#pragma GCC unroll 4
    for (int64_t j = 0; j < kVectors; ++j) {
      const Vec added = hn::MulAdd(b, u[j], hn::Mul(k, v[j]));
      const Vec s = hn::MulAdd(w, hn::LoadU(d, row + j * kLanes), added);
      hn::StoreU(s, d, row + j * kLanes);
      o[j] = hn::MulAdd(q, s, o[j]);
      read[j] = hn::MulAdd(a, s, read[j]);
    }
  }
#pragma GCC unroll 4
  for (int64_t j = 0; j < kVectors; ++j) u[j] = read[j];
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

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace cortado::dplr
HWY_AFTER_NAMESPACE();

#endif
