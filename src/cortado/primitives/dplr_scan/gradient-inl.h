// The backward of the scan, of one row and head. Part of kernel.cpp, compiled once per instruction set (hence the
// unusual guard).
//
// The state before every kSegment-th token is kept. Segments are differentiated from the last to the first, after all
// their states have been computed again.
#if defined(CORTADO_DPLR_SCAN_GRADIENT_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef CORTADO_DPLR_SCAN_GRADIENT_INL_H
#undef CORTADO_DPLR_SCAN_GRADIENT_INL_H
#else
#define CORTADO_DPLR_SCAN_GRADIENT_INL_H
#endif

#include "cortado/primitives/dplr_scan/kernel.h"
#include "cortado/primitives/kernels/scratch.h"
#include "cortado/primitives/kernels/tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace cortado::dplr {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using namespace kernels;
using namespace kernels::HWY_NAMESPACE;

constexpr int64_t kSegment = 32, kGroup = 4;  // tokens between kept states; rows that are summed together

// A token's numbers, padded with zeros to whole vectors; keys also to whole groups of rows.
struct Token {
  float *q, *k, *a, *b, *decay;  // [K]
  float *v, *u, *grad;           // [V]; u: what a reads; grad: of o, times the factor
};

// The walks over one row and head.
class Gradient {
 public:
  Gradient(const ScanKernel& scan, int64_t task)
      : in_(scan),
        row_(task / scan.heads),
        head_(task % scan.heads),
        first_(scan.first(row_)),
        count_(scan.count(row_)),
        keys_(round_up(scan.keys, kGroup > kLanes ? kGroup : kLanes)),
        values_(round_up(scan.values, kLanes)),
        size_(keys_ * values_),
        segments_((count_ + kSegment - 1) / kSegment) {
    for (Token& token : tokens_) {
      for (float** part : {&token.q, &token.k, &token.a, &token.b, &token.decay}) *part = scratch_.take(keys_);
      for (float** part : {&token.v, &token.u, &token.grad}) *part = scratch_.take(values_);
    }
    starts_ = scratch_.take(segments_ * size_);
    states_ = scratch_.take((kSegment + 1) * size_);
    slope_ = scratch_.take(size_);
    for (float** part : {&dq_, &dk_, &da_, &db_, &decays_}) *part = scratch_.take(keys_);
    for (float** part : {&dv_, &du_}) *part = scratch_.take(values_);
  }

  void run() {
    read_states(in_.start, states_);
    for (int64_t s = 0; s < segments_; ++s) {
      copy(states_, size_, starts_ + s * size_);
      if (s + 1 == segments_) break;
      for (int64_t t = 0; t < kSegment; ++t) {
        read_token(s * kSegment + t, tokens_[0]);
        advance(tokens_[0], states_, states_);
      }
    }
    read_states(in_.grad_last, slope_);
    for (int64_t s = segments_ - 1; s >= 0; --s) {
      const int64_t begin = s * kSegment, tokens = count_ - begin < kSegment ? count_ - begin : kSegment;
      copy(starts_ + s * size_, size_, states_);
      for (int64_t t = 0; t < tokens; ++t) {
        read_token(begin + t, tokens_[t]);
        advance(tokens_[t], states_ + t * size_, states_ + (t + 1) * size_);
      }
      for (int64_t t = tokens - 1; t >= 0; --t) differentiate(begin + t, tokens_[t], states_ + t * size_);
    }
    for (int64_t i = 0; i < in_.keys; ++i) write_row(slope_ + i * values_, of_state(in_.dstart, i), 1, in_.values);
  }

 private:
  // Row i of states [rows,H,K,V].
  template <class T>
  T* of_state(T* states, int64_t i) const {
    return states + ((row_ * in_.heads + head_) * in_.keys + i) * in_.values;
  }
  int64_t place(int64_t t) const { return (first_ + t) * in_.heads + head_; }

  void read_states(const float* from, float* to) const {
    fill(to, size_, 0);
    for (int64_t i = 0; from && i < in_.keys; ++i) {
      read_row(of_state(from, i), 1, in_.values, 1.0f, to + i * values_, values_);
    }
  }

  void read_token(int64_t t, const Token& token) const {
    const Floats d;
    const int64_t keys = place(t) * in_.keys, values = place(t) * in_.values;
    const auto read_keys = [&](const float* from, float* to)
                               HWY_ATTR { read_row(from + keys, 1, in_.keys, 1.0f, to, keys_); };
    read_keys(in_.q, token.q);
    read_keys(in_.k, token.k);
    read_keys(in_.a, token.a);
    read_keys(in_.b, token.b);
    read_keys(in_.g, token.decay);
    for (int64_t i = 0; i < keys_; i += kLanes) hn::Store(exp_of(d, hn::Load(d, token.decay + i)), d, token.decay + i);
    read_row(in_.v + values, 1, in_.values, 1.0f, token.v, values_);
    if (in_.grad_o) {
      read_row(in_.grad_o + values, 1, in_.values, in_.factor, token.grad, values_);
    } else {
      fill(token.grad, values_, 0);
    }
  }

  // The next state; stores what a reads in token.u. The states may be the same.
  void advance(const Token& token, const float* from, float* to) const {
    const Floats d;
    fill(token.u, values_, 0);
    for (int64_t i = 0; i < in_.keys; ++i) {
      const Vec a = hn::Set(d, token.a[i]);
      const float* row = from + i * values_;
      for (int64_t j = 0; j < values_; j += kLanes) {
        hn::Store(hn::MulAdd(a, hn::Load(d, row + j), hn::Load(d, token.u + j)), d, token.u + j);
      }
    }
    for (int64_t i = 0; i < keys_; ++i) {
      const Vec w = hn::Set(d, token.decay[i]), b = hn::Set(d, token.b[i]), k = hn::Set(d, token.k[i]);
      const float* row = from + i * values_;
      float* next = to + i * values_;
      for (int64_t j = 0; j < values_; j += kLanes) {
        const Vec added = hn::MulAdd(b, hn::Load(d, token.u + j), hn::Mul(k, hn::Load(d, token.v + j)));
        hn::Store(hn::MulAdd(w, hn::Load(d, row + j), added), d, next + j);
      }
    }
  }

  // Adds the token's read to the slope ∂L/∂S_t, and computes the gradients of v and of u.
  void read_slope(const Token& token) const {
    const Floats d;
    fill(dv_, values_, 0);
    fill(du_, values_, 0);
    for (int64_t i = 0; i < in_.keys; ++i) {
      const Vec q = hn::Set(d, token.q[i]), b = hn::Set(d, token.b[i]), k = hn::Set(d, token.k[i]);
      float* row = slope_ + i * values_;
      for (int64_t j = 0; j < values_; j += kLanes) {
        const Vec e = hn::MulAdd(q, hn::Load(d, token.grad + j), hn::Load(d, row + j));
        hn::Store(e, d, row + j);
        hn::Store(hn::MulAdd(k, e, hn::Load(d, dv_ + j)), d, dv_ + j);
        hn::Store(hn::MulAdd(b, e, hn::Load(d, du_ + j)), d, du_ + j);
      }
    }
  }

  // Sums over the columns for kGroup rows from row i on; then the slope becomes that of the state before the token.
  HWY_INLINE void sum_rows(const Token& token, int64_t i, const float* before) const {
    const Floats d;
    Vec q[kGroup], k[kGroup], a[kGroup], b[kGroup], w[kGroup];
#pragma GCC unroll 4
    for (int64_t r = 0; r < kGroup; ++r) q[r] = k[r] = a[r] = b[r] = w[r] = hn::Zero(d);
    for (int64_t j = 0; j < values_; j += kLanes) {
      const Vec v = hn::Load(d, token.v + j), u = hn::Load(d, token.u + j), grad = hn::Load(d, token.grad + j),
                du = hn::Load(d, du_ + j);
#pragma GCC unroll 4
      for (int64_t r = 0; r < kGroup; ++r) {
        const int64_t at = (i + r) * values_ + j;
        const Vec e = hn::Load(d, slope_ + at), old = hn::Load(d, before + at), now = hn::Load(d, before + size_ + at);
        q[r] = hn::MulAdd(now, grad, q[r]);
        k[r] = hn::MulAdd(e, v, k[r]);
        a[r] = hn::MulAdd(old, du, a[r]);
        b[r] = hn::MulAdd(e, u, b[r]);
        w[r] = hn::MulAdd(e, old, w[r]);
        const Vec decay = hn::Set(d, token.decay[i + r]), read = hn::Set(d, token.a[i + r]);
        hn::Store(hn::MulAdd(decay, e, hn::Mul(read, du)), d, slope_ + at);
      }
    }
    add_sums_of_four(d, q, dq_ + i);
    add_sums_of_four(d, k, dk_ + i);
    add_sums_of_four(d, a, da_ + i);
    add_sums_of_four(d, b, db_ + i);
    add_sums_of_four(d, w, decays_ + i);
  }

  // Computes one token's gradients; `before` is the state before it, followed by the state after it.
  void differentiate(int64_t t, const Token& token, const float* before) const {
    read_slope(token);
    for (float* part : {dq_, dk_, da_, db_, decays_}) fill(part, keys_, 0);
    for (int64_t i = 0; i < keys_; i += kGroup) sum_rows(token, i, before);
    for (int64_t i = 0; i < in_.keys; ++i) decays_[i] *= token.decay[i];
    const int64_t keys = place(t) * in_.keys;
    write_row(dq_, in_.dq + keys, 1, in_.keys);
    write_row(dk_, in_.dk + keys, 1, in_.keys);
    write_row(da_, in_.da + keys, 1, in_.keys);
    write_row(db_, in_.db + keys, 1, in_.keys);
    write_row(decays_, in_.dg + keys, 1, in_.keys);
    write_row(dv_, in_.dv + place(t) * in_.values, 1, in_.values);
  }

  const ScanKernel& in_;
  const int64_t row_, head_, first_, count_;
  const int64_t keys_, values_, size_;  // K and V padded; their product
  const int64_t segments_;
  Scratch scratch_;
  Token tokens_[kSegment];
  float *starts_, *states_;                // kept states; those of a segment
  float* slope_;                           // ∂L/∂S
  float *dq_, *dk_, *da_, *db_, *decays_;  // of one token; decays_: of the gates
  float *dv_, *du_;
};

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace cortado::dplr
HWY_AFTER_NAMESPACE();

#endif  // CORTADO_DPLR_SCAN_GRADIENT_INL_H
