// Turns a chunk's logits into U and W in place, and finds their references. Part of latte_gpu-inl.h.
#pragma once

namespace cortado::latent {

template <int kKeys, Task kTask, bool kApart>
DEV void Latte<kKeys, kTask, kApart>::begin_chunk(Columns& columns, int stage, int c) const {
  before(columns, c);
  if (thread_ == 0) steep_[c & 1] = 0;
  bool begins = false;
  UNROLL for (int x = 0; x < kColumns; ++x) begins = begins || columns.maximum[x] == -infinity();
  begins = __any_sync(~0u, begins);  // some latents have their first logits in this chunk
  const bool full = (chunk(c) + 1) * kGpuChunk <= at_.tokens;
  if (kAcross || begins) {  // kAcross: two at once would need too many registers
    if (full) {
      find_firsts<true>(theta_of(stage), c);
    } else {
      find_firsts<false>(theta_of(stage), c);
    }
  } else {
    find_maxima(theta_of(stage), c, full);
  }
}

template <int kKeys, Task kTask, bool kApart>
DEV void Latte<kKeys, kTask, kApart>::sum_chunk(float (*sums)[kColumns], Columns& columns, int stage, int c) const {
  choose(columns, c);
  if ((chunk(c) + 1) * kGpuChunk <= at_.tokens) {
    sum_up<true>(sums, columns, theta_of(stage), c);
  } else {
    sum_up<false>(sums, columns, theta_of(stage), c);
  }
}

template <int kKeys, Task kTask, bool kApart>
DEV void Latte<kKeys, kTask, kApart>::end_chunk(float (*sums)[kColumns], const Columns& columns, int stage, int c) {
  float front[kColumns], all[kColumns];  // before this warp's tokens, and after the chunk
  if (steep_[c & 1]) {
    spell_out(columns, stage, c);
    add_up(front, all, columns);
  } else {
    add_up(front, all, columns);
    divide(sums, front, columns, stage);
  }
  carry_on(columns, all);
}

template <int kKeys, Task kTask, bool kApart>
DEV void Latte<kKeys, kTask, kApart>::before(Columns& columns, int c) const {
  UNROLL for (int x = 0; x < kColumns; ++x) {
    columns.sum[x] = kReverse ? 0 : sum_[x];
    const bool none = kReverse && latent_of(column_of(x)) >= in_.latents;
    columns.maximum[x] = none ? 0 : kReverse ? -infinity() : maximum_[x];
  }
  if constexpr (kReverse || kTask == Task::kWeights) {
    float* carry = carry_of(c);
    const int latents = in_.latents;
    const bool writes = thread_ < 32;
    each_column(0, [&](int x, long long latent) {
      if (kReverse) {
        columns.sum[x] = carry[latent];
        columns.maximum[x] = carry[latents + latent];
      } else if (writes) {
        carry[latent] = columns.sum[x];
        carry[latents + latent] = columns.maximum[x];
      }
    });
  }
}

template <int kKeys, Task kTask, bool kApart>
DEV void Latte<kKeys, kTask, kApart>::find_maxima(const Latents& theta, int c, bool full) const {
  UNROLL for (int p = 0; p < kPairs; ++p) {
    u32 top = pack(-infinity(), -infinity());
    UNROLL for (int i = 0; i < kRowsEach; ++i) {
      const int r = row_of(i);
      if (full || there(c, r)) top = larger2(top, *word(theta, r, pair_of(p)));
    }
    *reinterpret_cast<Two*>(maxima_ + order_ * kWidth + 2 * pair_of(p)) = {unpack_low(top), unpack_high(top)};
  }
}

template <int kKeys, Task kTask, bool kApart>
template <bool kFull>
DEV void Latte<kKeys, kTask, kApart>::find_firsts(const Latents& theta, int c) const {
  UNROLL for (int p = 0; p < kPairs; ++p) {
    float top[2] = {-infinity(), -infinity()}, first[2] = {-infinity(), -infinity()};
    UNROLL for (int i = 0; i < kRowsEach; ++i) {
      const int r = row_of(i);
      if (!kFull && !there(c, r)) continue;
      const u32 both = *word(theta, r, pair_of(p));
      const float x[2] = {unpack_low(both), unpack_high(both)};
      UNROLL for (int y = 0; y < 2; ++y) {
        if (first[y] == -infinity()) first[y] = x[y];
        top[y] = x[y] > top[y] ? x[y] : top[y];
      }
    }
    const int place = order_ * kWidth + 2 * pair_of(p);
    *reinterpret_cast<Two*>(maxima_ + place) = {top[0], top[1]};
    *reinterpret_cast<Two*>(firsts_ + place) = {first[0], first[1]};
  }
}

template <int kKeys, Task kTask, bool kApart>
DEV void Latte<kKeys, kTask, kApart>::choose(Columns& columns, int c) const {
  float tops[kColumns];
  UNROLL for (int x = 0; x < kColumns; ++x) tops[x] = columns.maximum[x];
  each_warp(maxima_, [&](int, int x, float own) { tops[x] = own > tops[x] ? own : tops[x]; });
  UNROLL for (int x = 0; x < kColumns; ++x) {
    const int column = column_of(x);
    const float maximum = columns.maximum[x], top = tops[x];
    float base = maximum;  // the running maximum rises from here on
    if (base == -infinity()) {
      for (int w = 0; w < kGpuWarps && base == -infinity(); ++w) base = firsts_[w * kWidth + column];
    }
    columns.top[x] = top;
    columns.base[x] = base;
    const float to = kReverse ? base : top;
    columns.to[x] = to == -infinity() ? 0 : to;
    // In reverse S is relative to the later chunk's reference, and this chunk's base is not larger than that.
    columns.factor[x] = kReverse ? (maximum_[x] == -infinity() ? 0 : relative(to, maximum_[x])) : relative(maximum, to);
    if (top - base > kSteep) steep_[c & 1] = 1;  // -inf - -inf is NaN, which is not larger
    if (thread_ < 32) factors_[column] = columns.factor[x];
  }
}

template <int kKeys, Task kTask, bool kApart>
template <bool kFull>
DEV void Latte<kKeys, kTask, kApart>::sum_up(float (*sums)[kColumns], const Columns& columns, const Latents& theta,
                                             int c) const {
  float total[kColumns] = {};
  UNROLL for (int i = 0; i < kRowsEach; ++i) {
    const int r = row_of(i);
    UNROLL for (int p = 0; p < kPairs; ++p) {
      u32* at = word(theta, r, pair_of(p));
      const u32 both = *at;
      float w[2] = {0, 0};
      if (kFull || there(c, r)) {
        w[0] = exponential(unpack_low(both) - columns.to[2 * p]);
        w[1] = exponential(unpack_high(both) - columns.to[2 * p + 1]);
      }
      *at = pack(w[0], w[1]);
      UNROLL for (int y = 0; y < 2; ++y) sums[i][2 * p + y] = total[2 * p + y] += w[y];
    }
  }
  UNROLL for (int p = 0; p < kPairs; ++p) {
    *reinterpret_cast<Two*>(sums_ + order_ * kWidth + 2 * pair_of(p)) = {total[2 * p], total[2 * p + 1]};
  }
}

template <int kKeys, Task kTask, bool kApart>
template <typename Work>
DEV void Latte<kKeys, kTask, kApart>::each_warp(const float* numbers, const Work& work) const {
  UNROLL_BY(4) for (int w = 0; w < kGpuWarps; ++w) {
    UNROLL for (int p = 0; p < kPairs; ++p) {
      const Two own = *reinterpret_cast<const Two*>(numbers + w * kWidth + 2 * pair_of(p));
      UNROLL for (int y = 0; y < 2; ++y) work(w, 2 * p + y, own.x[y]);
    }
  }
}

template <int kKeys, Task kTask, bool kApart>
DEV void Latte<kKeys, kTask, kApart>::add_up(float* front, float* all, const Columns& columns) const {
  UNROLL for (int x = 0; x < kColumns; ++x) {
    front[x] = all[x] = columns.sum[x] * (kReverse ? relative(columns.maximum[x], columns.to[x]) : columns.factor[x]);
  }
  each_warp(sums_, [&](int w, int x, float own) {
    if (w < order_) front[x] += own;
    all[x] += own;
  });
}

template <int kKeys, Task kTask, bool kApart>
DEV void Latte<kKeys, kTask, kApart>::divide(float (*sums)[kColumns], const float* front, const Columns& columns,
                                             int stage) {
  UNROLL for (int i = 0; i < kRowsEach; ++i) {
    UNROLL for (int x = 0; x < kColumns; ++x) {
      const float n = front[x] + sums[i][x];
      sums[i][x] = n > 0 ? reciprocal(n) : 0.0f;
    }
  }
  if constexpr (kTask == Task::kWeights) {
    UNROLL for (int i = 0; i < kRowsEach; ++i) {
      *reinterpret_cast<Two*>(outer_ + row_of(i) * kGpuFloatRow + 2 * lane_) = {sums[i][0], sums[i][1]};
    }
  } else if constexpr (kHasP) {
    if (kStraightRead && in_.softmax) {
      soften<true>(p_of(stage), sums);
    } else {
      multiply_p(sums, p_of(stage));
    }
    if constexpr (kLogit) sum_weights<false>(columns, stage);
  }
}

template <int kKeys, Task kTask, bool kApart>
DEV void Latte<kKeys, kTask, kApart>::multiply_p(const float (*by)[kColumns], const Latents& tile) const {
  UNROLL for (int i = 0; i < kRowsEach; ++i) {
    UNROLL for (int p = 0; p < kPairs; ++p) multiply_word(word(tile, row_of(i), pair_of(p)), by[i] + 2 * p);
  }
}

template <int kKeys, Task kTask, bool kApart>
template <bool kMultiply>
DEV void Latte<kKeys, kTask, kApart>::soften(const Latents& tile, const float (*by)[kColumns]) const {
  float x[kColumns][kRowsEach], of_rows[kRowsEach];
  UNROLL for (int i = 0; i < kRowsEach; ++i) {
    UNROLL for (int p = 0; p < kPairs; ++p) {
      const u32 both = *word(tile, row_of(i), pair_of(p));
      const bool there = 2 * pair_of(p) < in_.latents;
      x[2 * p][i] = there ? unpack_low(both) : -infinity();
      x[2 * p + 1][i] = there ? unpack_high(both) : -infinity();
    }
    float largest = x[0][i];
    UNROLL for (int y = 1; y < kColumns; ++y) largest = x[y][i] > largest ? x[y][i] : largest;
    of_rows[i] = largest;
  }
  reduce_rows(of_rows, [](float a, float b) { return a > b ? a : b; });
  UNROLL for (int i = 0; i < kRowsEach; ++i) {
    const float largest = of_rows[i];
    of_rows[i] = 0;
    UNROLL for (int y = 0; y < kColumns; ++y) of_rows[i] += x[y][i] = exponential(x[y][i] - largest);
  }
  reduce_rows(of_rows, [](float a, float b) { return a + b; });
  UNROLL for (int i = 0; i < kRowsEach; ++i) {
    const float share = reciprocal(of_rows[i]);
    UNROLL for (int y = 0; y < kColumns; ++y) x[y][i] *= kMultiply ? share * by[i][y] : share;
    UNROLL for (int p = 0; p < kPairs; ++p) { *word(tile, row_of(i), pair_of(p)) = pack(x[2 * p][i], x[2 * p + 1][i]); }
  }
}

template <int kKeys, Task kTask, bool kApart>
template <typename Join>
DEV void Latte<kKeys, kTask, kApart>::reduce_rows(float* x, const Join& join) const {
  static_assert(kRowsEach == 8, "three halvings");
  UNROLL for (int half = 4; half > 0; half /= 2) {
    const int far = half * 4;
    const bool second = lane_ & far;
    UNROLL for (int i = 0; i < half; ++i) {
      const float got = __shfl_xor_sync(~0u, second ? x[i] : x[i + half], far);
      x[i] = join(second ? x[i + half] : x[i], got);
    }
  }
  float one = x[0];
  UNROLL for (int far = 2; far > 0; far /= 2) one = join(one, __shfl_xor_sync(~0u, one, far));
  UNROLL for (int i = 0; i < 8; ++i) x[i] = __shfl_sync(~0u, one, i * 4);
}

template <int kKeys, Task kTask, bool kApart>
template <bool kSteep>
DEV void Latte<kKeys, kTask, kApart>::sum_weights(const Columns& columns, int stage) {
  float sums[kRowsEach][2], total[2] = {};
  UNROLL for (int i = kRowsEach - 1; i >= 0; --i) {
    const u32 u = *word(p_of(stage), row_of(i), lane_), w = *word(w_of(stage), row_of(i), lane_);
    sums[i][0] = total[0] += unpack_low(u) * unpack_low(w);
    sums[i][1] = total[1] += unpack_high(u) * unpack_high(w);
  }
  *reinterpret_cast<Two*>(maxima_ + order_ * kWidth + 2 * lane_) = {total[0], total[1]};
  __syncthreads();
  float behind[2], all[2];
  UNROLL for (int y = 0; y < 2; ++y) behind[y] = all[y] = sum_[y] * columns.factor[y];
  each_warp(maxima_, [&](int w, int y, float own) {
    all[y] += own;
    if (w > order_) behind[y] += own;
  });
  UNROLL for (int y = 0; y < 2; ++y) {
    UNROLL for (int i = 0; i < kRowsEach; ++i) sums[i][y] = kSteep ? sum_[y] : sums[i][y] + behind[y];
    sum_[y] = all[y];
  }
  if constexpr (kOut) {
    UNROLL for (int i = 0; i < kRowsEach; ++i) {
      *reinterpret_cast<Two*>(outer_ + row_of(i) * kGpuFloatRow + 2 * lane_) = {sums[i][0], sums[i][1]};
    }
  }
}

template <int kKeys, Task kTask, bool kApart>
DEV void Latte<kKeys, kTask, kApart>::carry_on(const Columns& columns, const float* all) {
  UNROLL for (int x = 0; x < kColumns; ++x) {
    if constexpr (kReverse) {
      if (columns.base[x] != -infinity()) maximum_[x] = columns.base[x];
    } else {
      sum_[x] = all[x];
      maximum_[x] = columns.top[x];
    }
  }
}

}  // namespace cortado::latent
