// A task has one head of one row, whose state stays in the first-level cache, and goes through time: decays, rates and
// keys from the maps' outputs, the scan's step, the norm and the gate. Compiled once per instruction set.
#include "cortado/mechanisms/rwkv/kernel.h"

#include "cortado/primitives/kernels/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cortado/mechanisms/rwkv/kernel.cpp"
#include <hwy/foreach_target.h>
// after foreach_target
#include "cortado/primitives/dplr_scan/step-inl.h"
#include "cortado/primitives/kernels/scratch.h"
#include "cortado/primitives/kernels/tasks.h"
#include "cortado/primitives/kernels/tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace cortado::rwkv7 {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using namespace kernels;
using namespace kernels::HWY_NAMESPACE;
using dplr::HWY_NAMESPACE::advance_in_place;
using dplr::HWY_NAMESPACE::kStrip;
using dplr::HWY_NAMESPACE::kVectors;
using dplr::HWY_NAMESPACE::read_state;

constexpr float kSlowest = -0.60653066F;  // -e^(-1/2), the log of the least decay

HWY_INLINE Vec sigmoid_of(Floats d, Vec x) {
  const Vec one = hn::Set(d, 1.0F);
  return hn::Div(one, hn::Add(one, exp_of(d, hn::Neg(x))));
}

void shift_block(const Shift& call, int64_t block) {
  const Floats d;
  const int64_t begin = block * Shift::kBlock,
                end = begin + Shift::kBlock < call.tokens ? begin + Shift::kBlock : call.tokens;
  for (int64_t t = begin; t < end; ++t) {
    const float *x = call.x + t * call.width, *before = call.before[t];
    for (int64_t i = 0; i < call.width; i += kLanes) {
      const int64_t n = call.width - i < kLanes ? call.width - i : kLanes;
      const Vec now = load_some(x + i, n), past = before ? load_some(before + i, n) : hn::Zero(d);
      const Vec change = hn::Sub(past, now);
      for (int64_t which = 0; which < call.count; ++which) {
        const Vec mixed = hn::MulAdd(change, load_some(call.mixes[which] + i, n), now);
        store_some(mixed, call.mixed + (which * call.tokens + t) * call.width + i, n);
      }
    }
  }
}

void squared_relu_block(const SquaredRelu& call, int64_t block) {
  const Floats d;
  const int64_t begin = block * SquaredRelu::kBlock,
                end = begin + SquaredRelu::kBlock < call.tokens ? begin + SquaredRelu::kBlock : call.tokens;
  const float* x = call.x + begin * call.width;
  float* y = call.y + begin * call.width;
  const int64_t count = (end - begin) * call.width;
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t n = count - i < kLanes ? count - i : kLanes;
    const Vec positive = hn::Max(load_some(x + i, n), hn::Zero(d));
    store_some(hn::Mul(positive, positive), y + i, n);
  }
}

// A token's numbers for one head, padded with zeros to whole strips.
struct Token {
  int64_t at;                                           // its first number
  float *r, *k, *v, *removal, *written, *decay, *read;  // removal: -κ; written: κ ⊙ rate; read: of the state
  Vec bonus;
};

// One head of one row.
class Head {
 public:
  Head(const Heads& call, int64_t task)
      : in_(call),
        row_(task / call.heads),
        head_(task % call.heads),
        size_(call.size),
        padded_(round_up(size_, kStrip)) {
    const Channels& c = call.channels;
    const float* given[] = {c.decay, c.rate, c.share, c.removal_scale, c.key_rate, c.bonus, c.norm_weight, c.norm_bias};
    for (int64_t i = 0; i < kChannels; ++i) {
      channels_[i] = scratch_.take(padded_);
      if (given[i]) read_row(given[i] + head_ * size_, 1, size_, 1.0F, channels_[i], padded_);
    }
    for (Token& token : tokens_) {
      for (float** part : {&token.r, &token.k, &token.v, &token.removal, &token.written, &token.decay, &token.read}) {
        *part = scratch_.take(padded_);
      }
    }
    for (float** part : {&inside_, &held_}) *part = scratch_.take(padded_);
    for (int64_t i = 0; i < padded_; ++i) inside_[i] = i < size_ ? 1.0F : 0.0F;
    state_ = scratch_.take(size_ * padded_);
  }

  void run() {
    const int64_t first = in_.bounds ? in_.bounds[row_] : row_ * in_.tokens,
                  end = in_.bounds ? in_.bounds[row_ + 1] : first + in_.tokens;
    const int64_t place = (row_ * in_.heads + head_) * size_ * size_;
    for (int64_t i = 0; i < size_; ++i) {
      float* to = state_ + i * padded_;
      if (in_.start) {
        read_row(in_.start + place + i * size_, 1, size_, 1.0F, to, padded_);
      } else {
        fill(to, padded_, 0);
      }
    }
    if (first < end) read_token(first, tokens_[first % 2]);
    for (int64_t column = 0; column < padded_ && first < end; column += kStrip) hold(tokens_[first % 2], column);
    for (int64_t t = first; t < end; ++t) {
      Token &now = tokens_[t % 2], &next = tokens_[(t + 1 < end ? t + 1 : t) % 2];
      if (t + 1 < end) read_token(t + 1, next);
      for (int64_t column = 0; column < padded_; column += kStrip) step(now, next, column);
      write(now);
    }
    for (int64_t i = 0; i < size_; ++i) write_row(state_ + i * padded_, in_.last + place + i * size_, 1, size_);
  }

 private:
  enum Number { kDecay, kRate, kShare, kRemovalScale, kKeyRate, kBonus, kNormWeight, kNormBias, kChannels };

  HWY_INLINE int64_t lanes(int64_t i) const { return size_ - i < kLanes ? size_ - i : kLanes; }
  HWY_INLINE Vec load(const float* x, const Token& token, int64_t i) const {
    return load_some(x + token.at + i, lanes(i));
  }
  HWY_INLINE Vec channel(Number which, int64_t i) const { return hn::Load(Floats(), channels_[which] + i); }

  HWY_INLINE void read_token(int64_t t, Token& to) {
    to.at = (t * in_.heads + head_) * size_;
    read_keys(to);
    read_values(to);
  }

  // The token's r, keys, decays, -κ and κ ⊙ rate; and what the bonus reads.
  HWY_INLINE void read_keys(Token& to) {
    const Floats d;
    const Vec one = hn::Set(d, 1.0F);
    Vec squares = hn::Zero(d), bonus = hn::Zero(d);
    for (int64_t i = 0; i < size_; i += kLanes) {
      const Vec key = load(in_.key, to, i), r = load(in_.r, to, i);
      const Vec rate = sigmoid_of(d, hn::Add(load(in_.rate, to, i), channel(kRate, i)));
      const Vec slow = sigmoid_of(d, hn::Add(load(in_.decay, to, i), channel(kDecay, i)));
      const Vec removal = hn::Mul(key, channel(kRemovalScale, i));
      const Vec k = hn::Mul(key, hn::MulAdd(hn::Sub(rate, one), channel(kKeyRate, i), one));
      squares = hn::MulAdd(removal, removal, squares);
      bonus = hn::MulAdd(hn::Mul(r, k), channel(kBonus, i), bonus);
      hn::Store(r, d, to.r + i);
      hn::Store(k, d, to.k + i);
      hn::Store(exp_of(d, hn::Mul(slow, hn::Set(d, kSlowest))), d, to.decay + i);
      hn::Store(removal, d, to.removal + i);
      hn::Store(rate, d, to.written + i);
    }
    to.bonus = hn::SumOfLanes(d, bonus);
    const Vec length = hn::Max(hn::Sqrt(hn::SumOfLanes(d, squares)), hn::Set(d, 1e-12F));
    for (int64_t i = 0; i < size_; i += kLanes) {
      const Vec unit = hn::Div(hn::Load(d, to.removal + i), length);
      hn::Store(hn::Neg(unit), d, to.removal + i);
      hn::Store(hn::Mul(unit, hn::Load(d, to.written + i)), d, to.written + i);
    }
  }

  // The values, mixed with those of the first layer.
  HWY_INLINE void read_values(const Token& to) {
    const Floats d;
    for (int64_t i = 0; i < padded_; i += kLanes) {
      if (i >= size_) {
        hn::Store(hn::Zero(d), d, to.v + i);
        continue;
      }
      Vec v = load(in_.v, to, i);
      if (in_.first) {
        const Vec share = sigmoid_of(d, hn::Add(load(in_.share, to, i), channel(kShare, i)));
        v = hn::MulAdd(hn::Sub(load(in_.first, to, i), v), share, v);
      }
      hn::Store(v, d, to.v + i);
    }
  }

  // What the state holds for the first token's -κ.
  HWY_INLINE void hold(const Token& token, int64_t column) {
    Vec held[kVectors];
    read_state(token.removal, size_, {state_ + column, padded_}, held);
#pragma GCC unroll 4
    for (int64_t j = 0; j < kVectors; ++j) hn::Store(held[j], Floats(), held_ + column + j * kLanes);
  }

  // Advances a strip of the state's columns and reads it, also for the next token's -κ.
  HWY_INLINE void step(const Token& now, const Token& next, int64_t column) {
    const Floats d;
    Vec v[kVectors], held[kVectors], read[kVectors];
#pragma GCC unroll 4
    for (int64_t j = 0; j < kVectors; ++j) {
      v[j] = hn::Load(d, now.v + column + j * kLanes);
      held[j] = hn::Load(d, held_ + column + j * kLanes);
    }
    advance_in_place({now.r, now.k, now.removal, now.written, now.decay}, next.removal, size_,
                     {state_ + column, padded_}, v, held, read);
#pragma GCC unroll 4
    for (int64_t j = 0; j < kVectors; ++j) {
      hn::Store(read[j], d, now.read + column + j * kLanes);
      hn::Store(held[j], d, held_ + column + j * kLanes);
    }
  }

  // Normalises what was read, adds the bonus of the token, and gates.
  HWY_INLINE void write(const Token& token) {
    const Floats d;
    Vec sum = hn::Zero(d), squares = hn::Zero(d);
    for (int64_t i = 0; i < size_; i += kLanes) sum = hn::Add(sum, hn::Load(d, token.read + i));
    const Vec count = hn::Set(d, static_cast<float>(size_)), mean = hn::Div(hn::SumOfLanes(d, sum), count);
    for (int64_t i = 0; i < size_; i += kLanes) {
      const Vec apart = hn::Mul(hn::Sub(hn::Load(d, token.read + i), mean), hn::Load(d, inside_ + i));
      squares = hn::MulAdd(apart, apart, squares);
      hn::Store(apart, d, token.read + i);
    }
    const Vec variance = hn::Div(hn::SumOfLanes(d, squares), count);
    const Vec scale = hn::Div(hn::Set(d, 1.0F), hn::Sqrt(hn::Add(variance, hn::Set(d, in_.eps))));
    for (int64_t i = 0; i < size_; i += kLanes) {
      const Vec normed = hn::Mul(hn::Load(d, token.read + i), scale);
      const Vec y = hn::MulAdd(normed, channel(kNormWeight, i), channel(kNormBias, i));
      const Vec read = hn::MulAdd(token.bonus, hn::Load(d, token.v + i), y);
      store_some(hn::Mul(read, load(in_.gate, token, i)), in_.o + token.at + i, lanes(i));
    }
  }

  const Heads& in_;
  int64_t row_, head_, size_, padded_;
  Scratch scratch_;
  float* channels_[kChannels];
  Token tokens_[2];                 // this one and the next, by whether their numbers are even
  float *inside_, *held_, *state_;  // inside_: 1 in the head's channels, 0 in the padding
};

void heads_task(const Heads& call, int64_t task) {
  const FlushDenormals guard;
  Head(call, task).run();
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace cortado::rwkv7
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cortado::rwkv7 {

namespace {

HWY_EXPORT(shift_block);
HWY_EXPORT(squared_relu_block);
HWY_EXPORT(heads_task);

}  // namespace

void shift(const Shift& call, const Parallel& parallel) {
  const int64_t blocks = (call.tokens + Shift::kBlock - 1) / Shift::kBlock;
  kernels::run_tasks(call, blocks, parallel, &HWY_DYNAMIC_DISPATCH(shift_block));
}

void heads(const Heads& call, const Parallel& parallel) {
  kernels::run_tasks(call, call.rows * call.heads, parallel, &HWY_DYNAMIC_DISPATCH(heads_task));
}

void squared_relu(const SquaredRelu& call, const Parallel& parallel) {
  const int64_t blocks = (call.tokens + SquaredRelu::kBlock - 1) / SquaredRelu::kBlock;
  kernels::run_tasks(call, blocks, parallel, &HWY_DYNAMIC_DISPATCH(squared_relu_block));
}

}  // namespace cortado::rwkv7
#endif
