// The scans token by token in float32; see tokens_gpu.h.
//
// A block has all keys and 32 values of a head's state in registers: sixteen lanes share the keys of four values, and
// each has quads of keys and of values. A token then costs three multiply-adds per number of the state, and sums over
// sixteen lanes. The difficulties of chunks - gates that cannot be divided by, of either sign, or steep - do not arise
// here, and there are no 16-bit products.
#pragma once

#include "cortado/primitives/cuda/device.h"
#include "cortado/primitives/gated_scan/tokens_gpu.h"
#include "cortado/primitives/gated_scan/walk_gpu-inl.h"

namespace cortado::gated {

using namespace device;

enum class Rule { kRead, kBonus, kStates, kDelta, kDeltaGradient };

template <int kKeys, Gates kGates, bool kReverse, Rule kRule>
class Tokens {
  static constexpr int kOwn = kKeys / 64;  // quads of keys per lane
  static constexpr int kGateWidth = token_gate_width(kKeys, kGates);
  // Tokens whose sums are reduced together, as many as 128 registers allow (256 registers with 256 keys).
  static constexpr int kTogether = kOwn == 1 ? 4 : kOwn == 2 && kGates == Gates::kValues ? 1 : 2;
  static constexpr bool kReads = kRule != Rule::kStates;
  static constexpr bool kHasBeta = kRule == Rule::kDelta || kRule == Rule::kDeltaGradient;

 public:
  DEV explicit Tokens(const GpuTokens& in)
      : in_(in),
        scan_(in.scan),
        at_(place_of(in.scan, kTokenPiece)),
        thread_(CORTADO_THREAD),
        lane_(thread_ & 31),
        part_(thread_ & 15),
        group_(thread_ >> 4),
        first_value_(at_.piece * kTokenPiece),
        end_(at_.end * kGpuChunk < at_.tokens ? at_.end * kGpuChunk : at_.tokens) {
    q_ = head_of<const float>(scan_.q, scan_, at_, 0);
    k_ = head_of<const float>(scan_.k, scan_, at_, 0);
    v_ = head_of<const float>(scan_.v, scan_, at_, first_value_);
    g_ = head_of<const float>(scan_.g, scan_, at_, kGates == Gates::kValues ? first_value_ : 0);
    beta_ = head_of<const float>(in.beta, scan_, at_, 0);
    o_ = head_of<float>(scan_.o, scan_, at_, own_value());
    written_ = head_of<float>(in.written, scan_, at_, own_value());
    stages_ = reinterpret_cast<float*>(shared_memory());
  }

  DEV void run() {
    load_state();
    float kept[kOwn * 4] = {};
    UNROLL for (int i = 0; i < kOwn * 4; ++i) kept[i] = 1;
    int stage = 0;
    fetch(at_.begin * kGpuChunk, stage);
    for (int p = at_.begin * kGpuChunk; p < end_; p += kTokenStage) {
      wait_for_groups<0>();
      __syncthreads();
      fetch(p + kTokenStage, stage ^ 1);
      make_decays(stage, p);
      __syncthreads();
      const int count = end_ - p < kTokenStage ? end_ - p : kTokenStage;
      int r = 0;
      if constexpr (kRule == Rule::kRead) {
        UNROLL_BY(1) for (; r + kTogether <= count && !keeps_within(p + r); r += kTogether) {
          read_together(stage, r, p + r);
        }
      }
      UNROLL_BY(1) for (; r < count; ++r) {
        step(stage, r, token(p + r));
        if constexpr (!kReads) keep(kept, stage, r);
      }
      stage ^= 1;
    }
    wait_for_groups<0>();
    if constexpr (!kReads) write_kept(kept);
    if (scan_.last)
      each([&](float& number, long long place) { scan_.last[place] = number * scan_.last_factor; }, at_.state);
  }

 private:
  DEV int token(int p) const { return kReverse ? at_.tokens - 1 - p : p; }
  DEV int key_of(int i) const { return (i * 16 + part_) * 4; }
  DEV int value_of(int y) const { return first_value_ + group_ * 4 + y; }
  // The value whose sum sum_up() leaves in this lane.
  DEV int own_value() const { return value_of((part_ >> 3) * 2 + ((part_ >> 2) & 1)); }
  DEV bool writes() const { return (part_ & 3) == 0 && own_value() < scan_.values; }

  // --- Inputs. ---

  DEV float* q_of(int stage) const { return stages_ + stage * token_stage_numbers(kKeys, kGates); }
  DEV float* k_of(int stage) const { return q_of(stage) + kTokenStage * kKeys; }
  DEV float* v_of(int stage) const { return k_of(stage) + kTokenStage * kKeys; }
  DEV float* gates_of(int stage) const { return v_of(stage) + kTokenStage * kTokenPiece; }
  DEV float* betas_of(int stage) const { return gates_of(stage) + kTokenStage * kGateWidth; }

  DEV void fetch(int p, int stage) const {
    if (p < end_) {
      const int values = scan_.values - first_value_;
      if constexpr (kReads) fetch_rows<kKeys>(q_of(stage), scan_.q, q_, scan_.keys, p, 0);
      fetch_rows<kKeys>(k_of(stage), scan_.k, k_, scan_.keys, p, 0);
      fetch_rows<kTokenPiece>(v_of(stage), scan_.v, v_, values, p, 0);
      if constexpr (kGates == Gates::kKeys) fetch_rows<kKeys>(gates_of(stage), scan_.g, g_, scan_.keys, p, scan_.shift);
      if constexpr (kGates == Gates::kValues) {
        fetch_rows<kTokenPiece>(gates_of(stage), scan_.g, g_, values, p, scan_.shift);
      }
      if constexpr (kGates == Gates::kHead) fetch_numbers(gates_of(stage), scan_.g, g_, p, scan_.shift);
      if constexpr (kHasBeta) fetch_numbers(betas_of(stage), in_.beta, beta_, p, 0);
    }
    end_group();
  }

  // Fetches rows of the tokens from place p on.
  template <int kWidth>
  DEV void fetch_rows(float* to, const GpuTimed& x, const float* from, int width, int p, int shift) const {
    constexpr int kPieces = kWidth / 4;
    UNROLL_BY(2) for (int i = thread_; i < kTokenStage * kPieces; i += kTokenThreads) {
      const int r = i / kPieces, number = i % kPieces * 4;
      const bool there = has(p + r, shift) && from && number < width;
      const void* source = there ? from + times(token(p + r) + shift, x.token) + number : scan_.k.data;
      copy16(shared_address(to + r * kWidth + number), source, there ? 16 : 0);
    }
  }
  // Fetches one number per token, in rows of four.
  DEV void fetch_numbers(float* to, const GpuTimed& x, const float* from, int p, int shift) const {
    if (thread_ >= kTokenStage) return;
    const bool there = has(p + thread_, shift) && from;
    const void* source = there ? from + times(token(p + thread_) + shift, x.token) : scan_.k.data;
    copy4(shared_address(to + thread_ * 4), source, there ? 4 : 0);
  }
  DEV bool has(int p, int shift) const {
    const int t = token(p) + shift;
    return p < end_ && t >= 0 && t < at_.tokens;
  }

  // Replaces the gates by the factors on the state.
  DEV void make_decays(int stage, int p) const {
    float* gates = gates_of(stage);
    for (int i = thread_; i < kTokenStage * kGateWidth; i += kTokenThreads) {
      if (kGates == Gates::kHead && i % 4) continue;
      const bool there = g_ && has(p + i / kGateWidth, scan_.shift);
      gates[i] = !there ? 1.0f : in_.factors ? gates[i] : decay_of(gates[i]);
    }
  }

  // --- A token. ---

  DEV void step(int stage, int r, int t) {
    FourFloats v = quad(v_of(stage) + r * kTokenPiece + group_ * 4);
    if constexpr (kRule == Rule::kBonus) return step_with_bonus(stage, r, t, v);
    decay(stage, r);
    if (kReads && in_.segments && in_.meets && first_of_segment(t)) keep_segment(t);
    const float* q = q_of(stage) + r * kKeys;
    const float* k = k_of(stage) + r * kKeys;
    if constexpr (kRule == Rule::kDelta) {
      float known[4], e[4];
      ask(known, k);
      UNROLL for (int y = 0; y < 4; ++y) e[y] = v.x[y] - everywhere(known, y);
      const float own = part_ & 8 ? (part_ & 4 ? e[3] : e[2]) : (part_ & 4 ? e[1] : e[0]);
      if (written_ && writes()) written_[times(t, in_.written.token)] = own;
      const float beta = betas_of(stage)[r * 4];
      UNROLL for (int y = 0; y < 4; ++y) v.x[y] = beta * e[y];
    }
    add(k, v);
    if constexpr (kRule == Rule::kDeltaGradient) {
      float y[4];
      ask(y, q);
      const float beta = betas_of(stage)[r * 4];
      if (writes()) o_[times(t, scan_.o.token)] = y[0] * beta * scan_.scale;
      FourFloats lost;
      UNROLL for (int i = 0; i < 4; ++i) lost.x[i] = -beta * everywhere(y, i);
      add(q, lost);
    } else if constexpr (kReads) {
      float o[4];
      ask(o, q);
      if (writes()) o_[times(t, scan_.o.token)] = o[0] * scan_.scale;
    }
    if (kReads && in_.segments && !in_.meets && last_of_segment(t)) keep_segment(t);
  }

  // Computes some tokens together: their sums are reduced side by side, where each alone would wait for every shuffle,
  // and reads do not wait for the preceding token's writes. Results are bit-identical to one token at a time.
  DEV void read_together(int stage, int r, int p) {
    float o[4 * kTogether];
    UNROLL for (int n = 0; n < kTogether; ++n) {
      decay(stage, r + n);
      add(k_of(stage) + (r + n) * kKeys, quad(v_of(stage) + (r + n) * kTokenPiece + group_ * 4));
      multiply_state(o + 4 * n, q_of(stage) + (r + n) * kKeys);
    }
    sum_up<8, 4 * kTogether>(o);
    constexpr int kShare = 4 / kTogether;  // lanes that end up with one sum
    const int own = part_ / kShare, value = own & 3;
    float* const to = o_ + (value_of(value) - own_value());
    if (part_ % kShare || value_of(value) >= scan_.values) return;
    to[times(token(p + (own >> 2)), scan_.o.token)] = o[0] * scan_.scale;
  }
  // Whether the state is stored at one of these tokens.
  DEV bool keeps_within(int p) const {
    bool any = false;
    UNROLL for (int n = 0; n < kTogether; ++n) {
      any |= in_.segments && (in_.meets ? first_of_segment(token(p + n)) : last_of_segment(token(p + n)));
    }
    return any;
  }

  DEV void step_with_bonus(int stage, int r, int t, const FourFloats& v) {
    const float* q = q_of(stage) + r * kKeys;
    const float* k = k_of(stage) + r * kKeys;
    if (in_.segments && in_.meets && first_of_segment(t)) keep_segment(t);
    float o[4], own = 0;  // own: q^T diag(bonus) k
    UNROLL for (int i = 0; i < kOwn; ++i) {
      UNROLL for (int x = 0; x < 4; ++x) {
        const int key = key_of(i) + x;
        own += q[key] * k[key] * (kGates == Gates::kKeys && key < scan_.keys ? bonus_of(key, scan_.keys) : 1.0f);
      }
    }
    multiply_state(o, q);
    UNROLL for (int y = 0; y < 4; ++y) {
      const bool there = value_of(y) < scan_.values;
      o[y] += own * v.x[y] * (kGates == Gates::kValues && there ? bonus_of(value_of(y), scan_.values) : 1.0f);
    }
    sum_up(o);
    if (writes()) o_[times(t, scan_.o.token)] = o[0] * scan_.scale;
    decay(stage, r);
    add(k, v);
    if (in_.segments && !in_.meets && last_of_segment(t)) keep_segment(t);
  }
  DEV float bonus_of(int channel, int width) const { return in_.bonus[at_.head * width + channel]; }

  DEV static FourFloats quad(const float* x) { return *reinterpret_cast<const FourFloats*>(x); }

  DEV void decay(int stage, int r) {
    const float* gates = gates_of(stage) + r * kGateWidth;
    UNROLL for (int i = 0; i < kOwn; ++i) {
      FourFloats by;
      if constexpr (kGates == Gates::kKeys) by = quad(gates + key_of(i));
      if constexpr (kGates == Gates::kValues) by = quad(gates + group_ * 4);
      if constexpr (kGates == Gates::kHead) by = {gates[0], gates[0], gates[0], gates[0]};
      UNROLL for (int x = 0; x < 4; ++x) {
        UNROLL for (int y = 0; y < 4; ++y) state_[i][x][y] *= by.x[kGates == Gates::kValues ? y : x];
      }
    }
  }
  DEV void add(const float* keys, const FourFloats& values) {
    UNROLL for (int i = 0; i < kOwn; ++i) {
      const FourFloats k = quad(keys + key_of(i));
      UNROLL for (int x = 0; x < 4; ++x) { UNROLL for (int y = 0; y < 4; ++y) state_[i][x][y] += k.x[x] * values.x[y]; }
    }
  }

  // S^T x: sums[0] belongs to own_value().
  DEV void ask(float* sums, const float* keys) const {
    multiply_state(sums, keys);
    sum_up(sums);
  }
  // The sums over this lane's keys.
  DEV void multiply_state(float* sums, const float* keys) const {
    UNROLL for (int y = 0; y < 4; ++y) sums[y] = 0;
    UNROLL for (int i = 0; i < kOwn; ++i) {
      const FourFloats k = quad(keys + key_of(i));
      UNROLL for (int x = 0; x < 4; ++x) { UNROLL for (int y = 0; y < 4; ++y) sums[y] += k.x[x] * state_[i][x][y]; }
    }
  }
  // Reduces over the sixteen lanes that have these values. As long as there are several sums, each lane keeps half of
  // them.
  template <int kFar = 8, int kSums = 4>
  DEV void sum_up(float* sums) const {
    const bool second = part_ & kFar;
    if constexpr (kSums == 1) sums[0] += __shfl_xor_sync(~0u, sums[0], kFar);
    UNROLL for (int i = 0; i < kSums / 2; ++i) {
      const float other = __shfl_xor_sync(~0u, second ? sums[i] : sums[i + kSums / 2], kFar);
      sums[i] = (second ? sums[i + kSums / 2] : sums[i]) + other;
    }
    if constexpr (kFar > 1) sum_up<kFar / 2, kSums == 1 ? 1 : kSums / 2>(sums);
  }
  // Returns value y's sum to all lanes, after sum_up().
  DEV float everywhere(const float* sums, int y) const { return __shfl_sync(~0u, sums[0], (lane_ & 16) + y * 4); }

  // --- States. ---

  template <typename Work>
  DEV void each(const Work& work, long long state) {
    UNROLL for (int i = 0; i < kOwn; ++i) {
      UNROLL for (int x = 0; x < 4; ++x) {
        UNROLL for (int y = 0; y < 4; ++y) {
          const int key = key_of(i) + x, value = value_of(y);
          if (key < scan_.keys && value < scan_.values) {
            work(state_[i][x][y], (state * scan_.keys + key) * scan_.values + value);
          }
        }
      }
    }
  }
  DEV void load_state() {
    UNROLL for (int i = 0; i < kOwn; ++i) {
      UNROLL for (int x = 0; x < 4; ++x) { UNROLL for (int y = 0; y < 4; ++y) state_[i][x][y] = 0; }
    }
    if (!scan_.initial) return;
    each([&](float& number, long long place) { number = scan_.initial[place] * scan_.initial_factor; }, at_.state);
  }

  // In the walk's order.
  DEV bool first_of_segment(int t) const { return edge(t, !kReverse); }
  DEV bool last_of_segment(int t) const { return edge(t, kReverse); }
  DEV bool edge(int t, bool begin) const {
    return begin ? t % kGpuSegment == 0 : t % kGpuSegment == kGpuSegment - 1 || t == at_.tokens - 1;
  }
  DEV void keep_segment(int t) {
    const long long segment =
        gpu_first_segment(at_.row, at_.first, scan_.tokens, scan_.bounds != nullptr) + t / kGpuSegment;
    each([&](float& number, long long place) { in_.segments[place] = number; }, segment * scan_.heads + at_.head);
  }

  DEV void keep(float* kept, int stage, int r) const {
    const float* gates = gates_of(stage) + r * kGateWidth;
    UNROLL for (int i = 0; i < kOwn * 4; ++i) {
      if constexpr (kGates == Gates::kKeys) kept[i] *= gates[key_of(i / 4) + i % 4];
      if (kGates == Gates::kValues && i < 4) kept[i] *= gates[group_ * 4 + i];
      if (kGates == Gates::kHead && i == 0) kept[i] *= gates[0];
    }
  }
  DEV void write_kept(const float* kept) const {
    if constexpr (kGates == Gates::kHead) {
      if (thread_ == 0 && at_.piece == 0) scan_.kept[at_.state] = kept[0];
      return;
    }
    UNROLL for (int i = 0; i < kOwn * 4; ++i) {
      const int key = key_of(i / 4) + i % 4;
      if (kGates == Gates::kKeys && at_.piece == 0 && group_ == 0 && key < scan_.keys) {
        scan_.kept[at_.state * scan_.keys + key] = kept[i];
      }
      if (kGates == Gates::kValues && part_ == 0 && i < 4 && value_of(i) < scan_.values) {
        scan_.kept[at_.state * scan_.values + value_of(i)] = kept[i];
      }
    }
  }

  const GpuTokens& in_;
  const GpuScan& scan_;
  const Place at_;
  const int thread_, lane_, part_, group_;  // part_: which keys; group_: which values
  const int first_value_, end_;             // end_: place of the last token
  const float *q_, *k_, *v_, *g_, *beta_;
  float *o_, *written_, *stages_;
  float state_[kOwn][4][4];
};

// The gates' gradient from the results of two walks.
DEV void add_up_token_gates(const GpuTokenGates& in) {
  const int channel = blockIdx.z * kTokenThreads + CORTADO_THREAD, head = blockIdx.x % in.heads,
            row = blockIdx.x / in.heads, segment = blockIdx.y;
  const long long first = in.bounds ? in.bounds[row] : 0, batch = in.bounds ? 0 : row;
  const int tokens = in.bounds ? static_cast<int>(in.bounds[row + 1] - first) : in.tokens;
  if (segment * kGpuSegment >= tokens || channel >= in.keys) return;
  const long long number = gpu_first_segment(row, first, in.tokens, in.bounds != nullptr) + segment;
  const long long state = (number * in.heads + head) * in.values * in.keys + channel * (in.across ? 1 : in.values);
  const int next = in.across ? in.keys : 1;
  float sum = 0;
  UNROLL_BY(4) for (int v = 0; v < in.values; ++v) {
    sum += in.states[state + v * next] * in.gradients[state + v * next];
  }
  sum *= in.scale;
  const auto start = [&](const GpuTimed& x, int from) {
    return static_cast<const float*>(x.data) + batch * x.batch + first * x.token +
           head / (in.heads / x.heads) * x.head + from;
  };
  const float *y = start(in.y, channel), *dy = start(in.dy, channel), *x = start(in.x, channel),
              *dx = start(in.dx, channel), *g = start(in.g, in.of_heads ? 0 : channel);
  const int begin = segment * kGpuSegment, end = begin + kGpuSegment < tokens ? begin + kGpuSegment : tokens;
  float* to = in.gradient + ((batch * in.tokens + first) * in.heads + head) * in.keys + channel;
  UNROLL_BY(4) for (int i = begin; i < end; ++i) {
    const int t = in.reverse ? i : begin + end - 1 - i;
    sum += y[times(t, in.y.token)] * dy[times(t, in.dy.token)] - x[times(t, in.x.token)] * dx[times(t, in.dx.token)];
    const bool cut = g[times(t, in.g.token)] < kCut;
    to[static_cast<long long>(t) * in.heads * in.keys] = cut ? 0.0f : sum;
  }
}

}  // namespace cortado::gated
