// Chunks in which a latent's logits rise by more than kSteep: pairs of tokens one by one. Part of latte_gpu-inl.h.
//
// With the log-sums L_t = log sum of e^theta_s, s <= t, the product of a reading token t with an earlier token s is
//   p_t e^(theta_s - L_t),
// which does not depend on a chunk's maximum. The states before the chunk keep their reference M: they are read with
// p_t e^(M - L_t), or in reverse with e^(theta_s - M).
#pragma once

namespace cortado::latent {

template <int kKeys, Task kTask, bool kApart>
DEV float Latte<kKeys, kTask, kApart>::theta_at(int c, int r, int column) const {
  const GpuTimed& x = kLogit                    ? in_.theta
                      : kTask == Task::kWeights ? scan_.v
                      : kTask == Task::kValues  ? scan_.q
                                                : scan_.k;
  if (!there(c, r)) return -infinity();
  return unpack_low(gated::head_of<const u16>(x, scan_, at_, latent_of(column))[times(token(c, r), x.token)]);
}

template <int kKeys, Task kTask, bool kApart>
DEV void Latte<kKeys, kTask, kApart>::spell_out(const Columns& columns, int stage, int c) {
  if constexpr (kTask == Task::kReadStates) return;
  if (thread_ < 32) find_log_sums(columns, c);
  if (kStraightRead && in_.softmax) soften<false>(p_of(stage), nullptr);
  if constexpr (kAcross && kOut) find_dots(stage);
  __syncthreads();
  if constexpr (!kAcross) find_pairs(stage, c);
  if constexpr (kAcross && kOut) find_outputs(stage, c);
  __syncthreads();
  set_operands(columns, stage, c);
}

// For this lane's columns.
template <int kKeys, Task kTask, bool kApart>
DEV void Latte<kKeys, kTask, kApart>::find_log_sums(const Columns& columns, int c) const {
  UNROLL for (int x = 0; x < kColumns; ++x) {
    const int column = column_of(x);
    if (latent_of(column) >= in_.latents) continue;
    float maximum = columns.maximum[x], sum = columns.sum[x];
    UNROLL_BY(1) for (int i = 0; i < kGpuChunk; ++i) {
      const int r = kReverse ? kGpuChunk - 1 - i : i;
      const float theta = theta_at(c, r, column), top = theta > maximum ? theta : maximum;
      if (top != -infinity()) sum = sum * relative(maximum, top) + relative(theta, top);
      maximum = top;
      log_sums()[r * 128 + column] = top == -infinity() ? top : top + logarithm(sum) * kLn2;
    }
  }
}

// The contribution of tokens earlier in the walk to each row; in reverse these are the tokens that read.
template <int kKeys, Task kTask, bool kApart>
DEV void Latte<kKeys, kTask, kApart>::find_pairs(int stage, int c) const {
  const int r = thread_ / 4;
  UNROLL_BY(1) for (int s = thread_ % 4; s <= r; s += 4) {
    const int reader = kReverse ? s : r, read = kReverse ? r : s;
    float sum = 0;
    UNROLL_BY(1) for (int latent = 0; latent < in_.latents; ++latent) {
      const float log_sum = log_sums()[reader * 128 + latent];
      if (log_sum == -infinity()) continue;
      sum += number(p_of(stage), reader, latent) * relative(theta_at(c, read, latent), log_sum);
    }
    pairs()[r * kGpuChunk + s] = sum;
  }
}

// <q, k> of all pairs.
template <int kKeys, Task kTask, bool kApart>
DEV void Latte<kKeys, kTask, kApart>::find_dots(int stage) const {
  const auto in = stage_of(stage);
  const auto at = [&](const Tile<kKeys * 2>& tile, int r, int pair) {
    return *(reinterpret_cast<const u32*>(shared_memory() + (tile.at(r, pair >> 2) - base_)) + (pair & 3));
  };
  const int r = thread_ / 4;
  UNROLL_BY(1) for (int s = thread_ % 4; s <= r; s += 4) {
    float sum = 0;
    UNROLL_BY(1) for (int pair = 0; pair < kKeys / 2; ++pair) {  // registers are scarce
      const u32 q = at(in.q, r, pair), k = at(in.k, s, pair);
      sum += unpack_low(q) * unpack_low(k) + unpack_high(q) * unpack_high(k);
    }
    pairs()[r * kGpuChunk + s] = sum;
  }
}

template <int kKeys, Task kTask, bool kApart>
DEV void Latte<kKeys, kTask, kApart>::find_outputs(int stage, int c) const {
  const int column = thread_ % kGpuPiece;
  if (latent_of(column) >= in_.latents) return;
  UNROLL_BY(1) for (int r = thread_ / kGpuPiece; r < kGpuChunk; r += kGpuThreads / kGpuPiece) {
    float sum = 0;
    UNROLL_BY(1) for (int s = 0; s <= r; ++s) {
      const int reader = kReverse ? s : r, read = kReverse ? r : s;
      const float log_sum = log_sums()[reader * 128 + column];
      if (log_sum == -infinity()) continue;
      float by = pairs()[r * kGpuChunk + s];
      if constexpr (kLogit) by = (by - number(w_of(stage), s, column)) * number(p_of(stage), s, column);
      sum += by * relative(theta_at(c, read, column), log_sum);
    }
    outputs()[r * kGpuPiece + column] = sum;
  }
}

// The factors that read the states, and those that are added to them.
template <int kKeys, Task kTask, bool kApart>
DEV void Latte<kKeys, kTask, kApart>::set_operands(const Columns& columns, int stage, int c) {
  UNROLL_BY(1) for (int i = 0; i < kRowsEach; ++i) {
    const int r = row_of(i);
    UNROLL for (int p = 0; p < kPairs; ++p) {
      float by[2], w[2];
      UNROLL for (int y = 0; y < 2; ++y) {
        const int x = 2 * p + y, column = column_of(x);
        const bool real = latent_of(column) < in_.latents;
        const float log_sum = real ? log_sums()[r * 128 + column] : -infinity();
        by[y] = log_sum == -infinity() ? 0.0f : relative(kReverse ? columns.base[x] : columns.maximum[x], log_sum);
        if constexpr (kReverse) {
          w[y] = real && maximum_[x] != -infinity() ? relative(theta_at(c, r, column), maximum_[x]) : 0.0f;
        }
      }
      if constexpr (kHasP) multiply_word(word(p_of(stage), r, pair_of(p)), by);
      if constexpr (kReverse) *word(theta_of(stage), r, pair_of(p)) = pack(w[0], w[1]);
      if constexpr (kTask == Task::kWeights) {
        *reinterpret_cast<Two*>(outer_ + r * kGpuFloatRow + 2 * lane_) = {by[0], by[1]};
      }
    }
  }
  if constexpr (kLogit) sum_weights<true>(columns, stage);
}

}  // namespace cortado::latent
