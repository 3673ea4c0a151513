// A tile of 16 tokens: its pairs of tokens, and its exchange with the state between tiles. Part of kernel.cpp, compiled
// once per instruction set (hence the unusual guard).
#if defined(CORTADO_GATED_SCAN_TILE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef CORTADO_GATED_SCAN_TILE_INL_H
#undef CORTADO_GATED_SCAN_TILE_INL_H
#else
#define CORTADO_GATED_SCAN_TILE_INL_H
#endif

#include "cortado/primitives/gated_scan/job-inl.h"

HWY_BEFORE_NAMESPACE();
namespace cortado::gated {
namespace HWY_NAMESPACE {
namespace {

// --- Pairs of tokens within a tile. ---

// to = from ⊙ decays, [16,16]
HWY_INLINE void times_decays(const float* from, const float* decays, float* to) {
  const Floats d;
  for (int64_t i = 0; i < kTokens * kTokens; i += kLanes) {
    hn::Store(hn::Mul(hn::Load(d, from + i), hn::Load(d, decays + i)), d, to + i);
  }
}

// scores[t][s] += Σ y_t x_s Π_{s < i <= t} a_i, over kVecs vectors of keys from `k` on. With a bonus t's own gate is
// excluded. With two queries per token, the next tile of y has the second one, and the next 16 rows of scores its
// scores.
template <int kQueries, int kVecs>
HWY_INLINE void score_block(const Job& job, int64_t k) {
  const Floats d;
  for (int64_t t = 0; t < kTokens; ++t) {
    job.fetcher->fetch(1);
    Vec seen[kQueries][kVecs];  // y_t times the decays down to s
#pragma GCC unroll 2
    for (int q = 0; q < kQueries; ++q) {
      const float* y = job.y + (q * kTokens + t) * job.keys + k;
#pragma GCC unroll 4
      for (int c = 0; c < kVecs; ++c) seen[q][c] = hn::Load(d, y + c * kLanes);
    }
    for (int64_t first = t / 4 * 4; first >= 0; first -= 4) {
      Vec sums[kQueries][4];
#pragma GCC unroll 4
      for (int i = 3; i >= 0; --i) {
        const int64_t s = first + i;
#pragma GCC unroll 2
        for (int q = 0; q < kQueries; ++q) sums[q][i] = hn::Zero(d);
        if (s > t) continue;
        const float* x = (s == t ? job.self : job.x) + s * job.keys + k;
        const float* a = job.a + s * job.keys + k;
        const bool decays = job.gated() && job.by_channel() && !(job.before() && s == t);
#pragma GCC unroll 4
        for (int c = 0; c < kVecs; ++c) {
          const Vec key = hn::Load(d, x + c * kLanes);
#pragma GCC unroll 2
          for (int q = 0; q < kQueries; ++q) {
            sums[q][i] = hn::MulAdd(seen[q][c], key, sums[q][i]);
            if (decays) seen[q][c] = hn::Mul(seen[q][c], hn::Load(d, a + c * kLanes));
          }
        }
      }
#pragma GCC unroll 2
      for (int q = 0; q < kQueries; ++q) {
        add_sums_of_four(d, sums[q], job.scores + (q * kTokens + t) * kTokens + first);
      }
    }
  }
}

// Vectors of keys that are summed together, as many as registers allow. The number affects how sums are rounded.
template <int kQueries>
constexpr int kScoreVecs = kQueries == 1 || kTileRows == 8 ? 4 : 2;

template <int kQueries = 1, int kVecs = kScoreVecs<kQueries>>
HWY_NOINLINE void score_pairs(const Job& job) {
  fill(job.scores, kQueries * kTokens * kTokens, 0);
  int64_t k = 0;
  for (; k + kVecs * kLanes <= job.keys; k += kVecs * kLanes) score_block<kQueries, kVecs>(job, k);
  for (; k < job.keys; k += kLanes) score_block<kQueries, 1>(job, k);
  if (!job.gated() || job.by_channel()) return;
  for (int q = 0; q < kQueries; ++q) {
    float* scores = job.scores + q * kTokens * kTokens;
    times_decays(scores, job.decays, scores);
  }
}

// --- Gradients of pairs and of the state's exchange in one recurrence, decay by decay. ---

// dy_t, which holds S w_t for the tile's start state S. The recurrence decays what w_t reads and adds the tile's pairs
// up to t: r <- a_s r + m[t][s] x_s. With kGate it also computes the gradient of every a_s: the r that a_s multiplies,
// times what follows from it, y_t times the decays after s. There are no divisions, so a decay of 0 needs no special
// case.
template <bool kGate>
HWY_NOINLINE void differentiate_reads(const Job& job) {
  const Floats d;
  const int64_t width = job.keys;
  if (kGate) fill(job.dg, kTokens * width, 0);
  for (int64_t k = 0; k < width; k += kLanes) {
    for (int64_t t = 0; t < kTokens; ++t) {
      job.fetcher->fetch(1);
      const float* m = job.m + t * kTokens;
      const int64_t seen = job.before() ? t : t + 1;
      float* dy = job.dy + t * width + k;
      Vec read = hn::Load(d, dy);
      for (int64_t s = 0; s < seen; ++s) {
        if (kGate) hn::Store(read, d, job.parts + s * kLanes);
        const Vec added = hn::Mul(hn::Set(d, m[s]), hn::Load(d, job.x + s * width + k));
        read = hn::MulAdd(hn::Load(d, job.a + s * width + k), read, added);
      }
      if (job.before()) read = hn::MulAdd(hn::Set(d, m[t]), hn::Load(d, job.self + t * width + k), read);
      hn::Store(read, d, dy);
      if (!kGate) continue;
      Vec weight = hn::Load(d, job.y + t * width + k);
      for (int64_t s = seen - 1; s >= 0; --s) {
        float* dg = job.dg + s * width + k;
        hn::Store(hn::MulAdd(weight, hn::Load(d, job.parts + s * kLanes), hn::Load(d, dg)), d, dg);
        weight = hn::Mul(weight, hn::Load(d, job.a + s * width + k));
      }
    }
  }
}

// dx_s, which holds E v_s for the gradient E at the tile's end. The same recurrence backwards to s: r <- a_{t+1} r +
// m[t][s] y_t. With a bonus reads come before their token's own gate, and a token sees itself through the bonus.
HWY_NOINLINE inline void differentiate_writes(const Job& job) {
  const Floats d;
  const int64_t width = job.keys, before = job.before() ? 1 : 0;
  const float* a = job.a + (1 - before) * width;  // a row of ones follows the last token
  for (int64_t k = 0; k < width; k += kLanes) {
    Vec dbonus = hn::Load(d, job.dbonus + k);
    for (int64_t s = 0; s < kTokens; ++s) {
      job.fetcher->fetch(1);
      float* dx = job.dx + s * width + k;
      Vec sum = hn::Load(d, dx);
      for (int64_t t = kTokens - 1; t >= s + before; --t) {
        const Vec added = hn::Mul(hn::Set(d, job.m[t * kTokens + s]), hn::Load(d, job.y + t * width + k));
        sum = hn::MulAdd(hn::Load(d, a + t * width + k), sum, added);
      }
      if (before) {
        const Vec own = hn::Mul(hn::Set(d, job.m[s * kTokens + s]), hn::Load(d, job.y + s * width + k));
        sum = hn::MulAdd(own, hn::Load(d, job.bonus + k), sum);
        dbonus = hn::MulAdd(own, hn::Load(d, job.x + s * width + k), dbonus);
      }
      hn::Store(sum, d, dx);
    }
    hn::Store(dbonus, d, job.dbonus + k);
  }
}

// crossing = rowsum(state ⊙ grad): the gradient of a decay that multiplies everything that crosses the tile.
inline void cross(const Job& job, const float* state) {
  const Floats d;
  fill(job.crossing, job.keys, 0);
  for (int64_t k = 0; k < job.keys; k += 4) {
    Vec sums[4];
    for (int i = 0; i < 4; ++i) {
      sums[i] = hn::Zero(d);
      for (int64_t j = (k + i) * job.values; j < (k + i + 1) * job.values; j += kLanes) {
        sums[i] = hn::MulAdd(hn::Load(d, state + j), hn::Load(d, job.grad + j), sums[i]);
      }
    }
    add_sums_of_four(d, sums, job.crossing + k);
  }
}

// Adds to the gates' gradient the contribution of the state after the tile, as differentiate_reads does for a token's
// read: here E reads S, and dx still holds only E v. The gradient of a log is that of its factor times the factor.
inline void finish_gate_gradient(const Job& job) {
  const Floats d;
  cross(job, job.state);
  for (int64_t k = 0; k < job.keys; k += kLanes) {
    Vec read = hn::Load(d, job.crossing + k);
    for (int64_t i = k; i < kTokens * job.keys; i += job.keys) {
      const Vec a = hn::Load(d, job.a + i);
      const Vec sum = hn::MulAdd(hn::Load(d, job.leave + i), read, hn::Load(d, job.dg + i));
      hn::Store(job.in.gates_are_factors ? sum : hn::Mul(sum, a), d, job.dg + i);
      read = hn::MulAdd(a, read, hn::Mul(hn::Load(d, job.x + i), hn::Load(d, job.dx + i)));
    }
  }
}

// --- Gradients of pairs, added to those of the state's exchange. ---

// If all channels decay alike, the gate's gradient is one number, kept in the first channel: m ⊙ scores, summed over
// the pairs around the gate.
HWY_INLINE void head_gate_gradients(const Job& job) {
  const Floats d;
  Vec behind[kTokens / kLanes];  // per s, summed over the tokens from t on
  for (Vec& sum : behind) sum = hn::Zero(d);
  for (int64_t t = kTokens - 1; t > 0; --t) {
    Vec total = hn::Zero(d);
    for (int64_t s = 0; s < kTokens; s += kLanes) {
      Vec& sum = behind[s / kLanes];
      sum = hn::MulAdd(hn::Load(d, job.m + t * kTokens + s), hn::Load(d, job.scores + t * kTokens + s), sum);
      const auto before = hn::FirstN(d, static_cast<size_t>(t > s ? t - s : 0));
      total = hn::Add(total, hn::IfThenElseZero(before, sum));
    }
    job.dg[t * job.keys] += hn::GetLane(hn::SumOfLanes(d, total));
  }
}

// If all channels decay alike, adds the pairs' contributions: dy_t += Σ_s m[t][s] x_s decay, dx_s += Σ_t m[t][s] y_t
// decay, and with kGate to the gates between s and t the product of all of these.
template <bool kRest, bool kGate>
void pair_gradients(const Job& job) {
  times_decays(job.m, job.decays, job.weights);
  weigh<Start::kAdd, Terms::kUpToRow>(job, job.weights, {job.x, job.keys}, job.keys, job.dy, job.keys);
  if (kRest) weigh<Start::kAdd, Terms::kFromRow>(job, job.weights, {job.y, job.keys}, job.keys, job.dx, job.keys);
  if (kGate) head_gate_gradients(job);
}

// --- Contributions of the state between tiles. ---

// to[t] = decay_t ⊙ (state · values_t), with the values transposed. Without a decay the recurrence applies it.
inline void read_decayed(const Job& job, const float* state, const float* value_lanes, const float* decay, float* to) {
  const Floats d;
  read_by_values(job, state, value_lanes, to);
  if (!job.gated() || !decay) return;
  if (!job.by_channel()) return times_rows(to, decay, job.keys, to);
  for (int64_t i = 0; i < kTokens * job.keys; i += kLanes) {
    hn::Store(hn::Mul(hn::Load(d, to + i), hn::Load(d, decay + i)), d, to + i);
  }
}

// dw = scores v + entering S
inline void read_by_scores(const Job& job, const Stretch& at) {
  read_tokens(job, job.scores, job.v_rows, job.entering, job.state, {job.in.dw, at, job.column, job.columns, job.dw});
}

// dv = scoresᵀ w + leaving ∂L/∂S
inline void value_gradients(const Job& job) {
  weigh<Start::kZero, Terms::kFromRow>(job, job.scores, {job.w, job.values}, job.values, job.dv, job.values);
  read_by_keys(job, job.leaving, job.grad, {job.dv, job.values}, job.dv, job.values);
}

// Computes the state after the tile.
inline void pass_tile(const Job& job, const float* from, float* to) {
  advance(job, job.leaving, job.v_rows, job.through, from, to);
}

// Computes m = w vᵀ, and the transposed tiles.
inline void weigh_pairs(const Job& job) {
  to_token_lanes(job.w, job.values, job.w_lanes, job.spare);
  to_token_lanes(job.v, job.values, job.v_lanes, job.spare);
  pair_products(job, job.w, job.v_lanes, job.values, job.m);
}

// The gates' gradient from what crosses the tile's bounds, for reads after writes; dy and dx hold only that
// contribution yet. Every summand contains the gate's own factor.
inline void gate_flow(const Job& job, const float* state) {
  const Floats d;
  cross(job, state);
  for (int64_t k = 0; k < job.keys; k += kLanes) {
    Vec sum = hn::Mul(hn::Load(d, job.crossing + k), hn::Load(d, job.through + k));
    for (int64_t i = (kTokens - 1) * job.keys + k; i >= 0; i -= job.keys) {
      sum = hn::MulAdd(hn::Load(d, job.y + i), hn::Load(d, job.dy + i), sum);
      hn::Store(sum, d, job.dg + i);
    }
    sum = hn::Zero(d);
    for (int64_t i = k; i < kTokens * job.keys; i += job.keys) {
      hn::Store(hn::Add(sum, hn::Load(d, job.dg + i)), d, job.dg + i);
      sum = hn::MulAdd(hn::Load(d, job.x + i), hn::Load(d, job.dx + i), sum);
    }
  }
}

inline void write_gate_gradient(const Job& job, const Stretch& at) {
  const Floats d;
  if (job.in.gate_per_channel) return write_tile(job.dg, job.keys, job.in.dg, at, 0, job.in.keys);
  for (int64_t t = 0; t < kTokens; ++t) {
    Vec sum = hn::Zero(d);
    for (int64_t k = 0; k < job.keys; k += kLanes) sum = hn::Add(sum, hn::Load(d, job.dg + t * job.keys + k));
    job.parts[t] = hn::GetLane(hn::SumOfLanes(d, sum));
  }
  write_numbers(job.parts, job.in.dg, at);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace cortado::gated
HWY_AFTER_NAMESPACE();

#endif
