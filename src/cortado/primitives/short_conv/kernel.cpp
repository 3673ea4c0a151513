// The short convolution, with channels in SIMD lanes; README.md, "The kernel". Compiled once per instruction set.
#include "cortado/primitives/short_conv/kernel.h"

#include "cortado/primitives/kernels/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cortado/primitives/short_conv/kernel.cpp"
#include <hwy/foreach_target.h>
// after foreach_target
#include "cortado/primitives/kernels/scratch.h"
#include "cortado/primitives/kernels/tasks.h"
#include "cortado/primitives/kernels/tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace cortado::convolution {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using namespace kernels;
using namespace kernels::HWY_NAMESPACE;

constexpr int64_t kChannels = 512;  // per job: its rows of a few tokens stay in the first-level cache
constexpr int64_t kAhead = 8;       // tokens to prefetch
constexpr int64_t kTile = 16;       // tokens of the backward per step

template <class T>
struct Rows {
  T* data;
  int64_t step;

  T* at(int64_t i) const { return data + i * step; }
  Rows from(int64_t i) const { return {at(i), step}; }
};

// --- Functions applied to the sum at token t, channels c and following. ---

struct Plain {
  HWY_INLINE Vec operator()(Vec z, int64_t, int64_t, int64_t) const { return z; }
};

struct Silu {
  HWY_INLINE Vec operator()(Vec z, int64_t, int64_t, int64_t) const {
    const Floats d;
    return hn::Div(z, hn::Add(hn::Set(d, 1.0f), exp_of(d, hn::Neg(z))));
  }
};

// dy · silu'(z), silu' = σ(z) (1 + z σ(-z))
template <class T>
struct SiluGradient {
  Rows<const T> grad_y;

  HWY_INLINE Vec operator()(Vec z, int64_t t, int64_t c, int64_t n) const {
    const Floats d;
    const Vec one = hn::Set(d, 1.0f), e = exp_of(d, hn::Neg(hn::Abs(z)));
    const Vec large = hn::Div(one, hn::Add(one, e)), small = hn::Mul(e, large);  // σ(|z|), σ(-|z|)
    const auto negative = hn::Lt(z, hn::Zero(d));
    const Vec own = hn::IfThenElse(negative, small, large), other = hn::IfThenElse(negative, large, small);
    return hn::Mul(load_some(grad_y.at(t) + c, n), hn::Mul(own, hn::MulAdd(z, other, one)));
  }
};

// Adds the final state's gradient, rows `step` apart, to the last rows; its first row belongs to t = -ahead.
struct PlusFinal {
  const float* grad_final;
  int64_t step, ahead;

  HWY_INLINE Vec operator()(Vec z, int64_t t, int64_t c, int64_t n) const {
    const int64_t row = t + ahead;
    return !grad_final || row < 0 ? z : hn::Add(z, load_some(grad_final + row * step + c, n));
  }
};

// --- Sums over the taps. ---

// Tap j's weights [channels] are at weight + j · step.
struct Taps {
  const float *weight, *bias;
  int64_t step, count;
  bool past_caches = false;  // of the sums
};

template <class To>
HWY_INLINE void store_sum(const Taps& taps, Vec x, To* to, int64_t n) {
  if constexpr (sizeof(To) == sizeof(float)) {
    if (taps.past_caches) return hn::Stream(x, Floats(), to);
  }
  store_some(x, to, n);
}

template <int kTokensAtOnce, class From, class To, class Finish>
HWY_INLINE void correlate_vector(const Taps& taps, const Rows<const From>& from, const Rows<To>& to, int64_t t,
                                 int64_t c, int64_t n, const Finish& finish) {
  const Floats d;
  Vec sums[kTokensAtOnce];
  const Vec start = taps.bias ? load_some(taps.bias + c, n) : hn::Zero(d);
#pragma GCC unroll 4
  for (int i = 0; i < kTokensAtOnce; ++i) sums[i] = start;
  const From* x = from.at(t) + c;
  const float* weight = taps.weight + c;
  for (int64_t j = 0; j < taps.count; ++j, x += from.step, weight += taps.step) {
    const Vec w = load_some(weight, n);
#pragma GCC unroll 4
    for (int i = 0; i < kTokensAtOnce; ++i) sums[i] = hn::MulAdd(w, load_some(x + i * from.step, n), sums[i]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < kTokensAtOnce; ++i) store_sum(taps, finish(sums[i], t + i, c, n), to.at(t + i) + c, n);
}

template <int kTokensAtOnce, class From, class To, class Finish>
HWY_INLINE void correlate_tokens(const Taps& taps, const Rows<const From>& from, const Rows<To>& to, int64_t t,
                                 int64_t width, const Finish& finish) {
  int64_t c = 0;
  for (; c + kLanes <= width; c += kLanes) correlate_vector<kTokensAtOnce>(taps, from, to, t, c, kLanes, finish);
  if (c < width) correlate_vector<kTokensAtOnce>(taps, from, to, t, c, width - c, finish);
}

// to_t = finish(Σ_j weight_j ⊙ from_{t+j} + bias), t < tokens
template <class From, class To, class Finish>
HWY_NOINLINE void correlate(const Taps& taps, const Rows<const From>& from, const Rows<To>& to, int64_t tokens,
                            int64_t width, const Finish& finish) {
  int64_t t = 0;
  for (; t + 4 <= tokens; t += 4) {
    // One row at a time: the correlation reads four rows at once, which the hardware prefetcher does not follow.
    for (int64_t i = 0; i < 4; ++i) prefetch_row(from.at(t + taps.count - 1 + kAhead + i), width);
    correlate_tokens<4>(taps, from, to, t, width, finish);
  }
  for (; t < tokens; ++t) correlate_tokens<1>(taps, from, to, t, width, finish);
  if (taps.past_caches) hwy::FlushStream();
}

// sums_j += Σ_t dz_t ⊙ from_{t+j}, t < tokens
template <class From>
HWY_NOINLINE void add_weight_gradients(const Rows<const float>& dz, const Rows<const From>& from, int64_t tokens,
                                       int64_t width, int64_t taps, const Rows<float>& sums) {
  const auto add = [&](int64_t j, int64_t c, int64_t n) HWY_ATTR {
    Vec sum = load_some(sums.at(j) + c, n);
    for (int64_t t = 0; t < tokens; ++t) {
      sum = hn::MulAdd(load_some(dz.at(t) + c, n), load_some(from.at(t + j) + c, n), sum);
    }
    store_some(sum, sums.at(j) + c, n);
  };
  for (int64_t j = 0; j < taps; ++j) {
    int64_t c = 0;
    for (; c + kLanes <= width; c += kLanes) add(j, c, kLanes);
    if (c < width) add(j, c, width - c);
  }
}

// to += or = from
template <bool kAdd, class From, class To>
void move_row(const From* from, To* to, int64_t width) {
  const auto move = [&](int64_t c, int64_t n) HWY_ATTR {
    const Vec x = load_some(from + c, n);
    store_some(kAdd ? hn::Add(load_some(to + c, n), x) : x, to + c, n);
  };
  int64_t c = 0;
  for (; c + kLanes <= width; c += kLanes) move(c, kLanes);
  if (c < width) move(c, width - c);
}

// --- One block's tokens, some of its channels. ---

int64_t pieces(const ConvKernel& in) { return (in.channels + kChannels - 1) / kChannels; }

// Tokens are counted from the sequence's first one. T is the type of x, y and their gradients.
template <class T>
class Job {
 public:
  Job(const ConvKernel& in, int64_t task)
      : in_(in),
        block_(in.blocks[task / pieces(in)]),
        number_(task / pieces(in)),
        channel_(task % pieces(in) * kChannels),
        width_(in.channels - channel_ < kChannels ? in.channels - channel_ : kChannels),
        padded_(round_up(width_, kLanes)),
        tail_(in.taps - 1),
        end_(block_.first + block_.count),
        taps_{in.weight + channel_, in.bias ? in.bias + channel_ : nullptr, in.channels, in.taps} {
    if (block_.first < tail_) read_lead();
  }

  void forward() {
    Taps taps = taps_;
    taps.past_caches = in_.past_caches;
    over_inputs(block_.first, end_, [&](const auto& from, int64_t first, int64_t end) {
      const Rows<T> to = rows<T>(in_.y, first);
      in_.silu ? correlate(taps, from, to, end - first, width_, Silu())
               : correlate(taps, from, to, end - first, width_, Plain());
    });
    if (!in_.final_state || end_ != block_.length) return;
    for (int64_t i = 0; i < tail_; ++i) read_input(end_ - tail_ + i, state_row(in_.final_state, i));
  }

  void backward() {
    const Rows<float> sums{scratch_.take((in_.taps + 1) * padded_), padded_};
    const Rows<float> dz{scratch_.take((kTile + tail_) * padded_), padded_};  // row i is token t + i
    fill(sums.data, (in_.taps + 1) * padded_, 0);
    int64_t t = block_.first == 0 ? -tail_ : block_.first;  // the first block includes the initial state's gradient
    t < 0 ? fill(dz.data, tail_ * padded_, 0) : differentiate_sums(t, tail_, dz);
    while (t < end_) {
      const int64_t left = (t < 0 ? 0 : end_) - t, n = left < kTile ? left : kTile;
      differentiate_sums(t + tail_, n, dz.from(tail_));
      if (t >= 0) add_weights(t, n, dz, sums);
      write_input_gradients(t, n, dz);
      for (int64_t i = 0; i < tail_; ++i) copy(dz.at(n + i), padded_, dz.at(i));
      t += n;
    }
    float* to = in_.sums + number_ * (in_.taps + 1) * in_.channels + channel_;
    for (int64_t j = 0; j <= in_.taps; ++j) move_row<false>(sums.at(j), to + j * in_.channels, width_);
  }

 private:
  template <class U>
  Rows<U> rows(const Timed& x, int64_t token) const {
    const Stretch at{block_.batch, 0, block_.begin + token, 1, 0};
    return {address<U>(x, at, channel_), x.token};
  }

  template <class U>
  U* state_row(U* states, int64_t i) const {
    return states + (block_.row * tail_ + i) * in_.channels + channel_;
  }

  // Reads the input of a token; tokens before the first come from the initial state.
  void read_input(int64_t token, float* to) const {
    if (token >= 0) {
      move_row<false>(rows<const T>(in_.x, token).data, to, width_);
    } else if (in_.initial) {
      move_row<false>(state_row(in_.initial, token + tail_), to, width_);
    } else {
      for (int64_t c = 0; c < width_; ++c) to[c] = 0;
    }
  }

  // Reads the initial state and as many tokens: the inputs of the first taps - 1 outputs.
  void read_lead() {
    lead_ = {scratch_.take(2 * tail_ * padded_), padded_};
    for (int64_t i = 0; i < 2 * tail_ && i < tail_ + block_.length; ++i) read_input(i - tail_, lead_.at(i));
  }

  // Calls work(rows, begin, end) separately for the tokens of [first, end) that see the initial state and for the
  // others; `rows` start at the first tap's input of token `begin`.
  template <class Work>
  void over_inputs(int64_t first, int64_t end, const Work& work) const {
    int64_t middle = first > tail_ ? first : tail_;
    if (middle > end) middle = end;
    if (first < middle) work(Rows<const float>{lead_.at(first), padded_}, first, middle);
    if (middle < end) work(rows<const T>(in_.x, middle - tail_), middle, end);
  }

  // Computes ∂L/∂z of n tokens from `first` on, 0 after the sequence's end.
  void differentiate_sums(int64_t first, int64_t n, const Rows<float>& to) const {
    const int64_t last = first + n < block_.length ? first + n : block_.length;
    const int64_t stop = last > first ? last : first;
    fill(to.at(stop - first), (first + n - stop) * padded_, 0);
    over_inputs(first, stop, [&](const auto& from, int64_t begin, int64_t end) {
      const Rows<const T> grad_y = rows<const T>(in_.grad_y, begin);
      if (in_.silu) {
        return correlate(taps_, from, to.from(begin - first), end - begin, width_, SiluGradient<T>{grad_y});
      }
      for (int64_t i = 0; i < end - begin; ++i) move_row<false>(grad_y.at(i), to.at(begin - first + i), width_);
    });
  }

  void add_weights(int64_t first, int64_t n, const Rows<float>& dz, const Rows<float>& sums) const {
    over_inputs(first, first + n, [&](const auto& from, int64_t begin, int64_t end) {
      const Rows<const float> grads{dz.at(begin - first), dz.step};
      add_weight_gradients(grads, from, end - begin, width_, in_.taps, sums);
    });
    for (int64_t i = 0; i < n; ++i) move_row<true>(dz.at(i), sums.at(in_.taps), width_);
  }

  // dx_t = Σ_i weight_{taps-1-i} ⊙ dz_{t+i}, plus the final state's gradient for its rows. Rows before the first token
  // are the initial state's gradient.
  void write_input_gradients(int64_t first, int64_t n, const Rows<float>& dz) const {
    const Taps reversed{taps_.weight + tail_ * in_.channels, nullptr, -in_.channels, in_.taps,
                        in_.past_caches && first >= 0};
    const PlusFinal plus{in_.grad_final ? state_row(in_.grad_final, 0) : nullptr, in_.channels,
                         first - (block_.length - tail_)};
    const Rows<const float> from{dz.data, dz.step};
    if (first >= 0) return correlate(reversed, from, rows<T>(in_.grad_x, first), n, width_, plus);
    if (!in_.grad_initial) return;
    const Rows<float> to{state_row(in_.grad_initial, first + tail_), in_.channels};
    correlate(reversed, from, to, n, width_, plus);
  }

  const ConvKernel& in_;
  const Block& block_;
  const int64_t number_, channel_, width_, padded_, tail_, end_;
  const Taps taps_;
  Scratch scratch_;
  Rows<float> lead_{};
};

template <class T>
void run_job(const ConvKernel& in, int64_t task, bool backward) {
  Job<T> job(in, task);
  backward ? job.backward() : job.forward();
}

void run_task(const ConvKernel& in, int64_t task, bool backward) {
  const FlushDenormals guard;
  if (in.x.type == Element::kFloat32) return run_job<float>(in, task, backward);
  if (in.x.type == Element::kBFloat16) return run_job<BFloat16>(in, task, backward);
  run_job<hwy::float16_t>(in, task, backward);
}

int64_t tasks(const ConvKernel& in) { return in.count * pieces(in); }
void forward_task(const ConvKernel& in, int64_t task) { run_task(in, task, false); }
void backward_task(const ConvKernel& in, int64_t task) { run_task(in, task, true); }

// Sums the blocks' weight gradients, in a fixed order.
constexpr int64_t kSummed = 1024;
int64_t summing_tasks(const ConvKernel& in) { return ((in.taps + 1) * in.channels + kSummed - 1) / kSummed; }
void summing_task(const ConvKernel& in, int64_t task) {
  const int64_t all = (in.taps + 1) * in.channels, start = task * kSummed;
  const int64_t n = all - start < kSummed ? all - start : kSummed;
  float* to = in.grad_weight + start;
  for (int64_t i = 0; i < n; ++i) to[i] = 0;
  for (int64_t i = 0; i < in.count; ++i) move_row<true>(in.sums + i * all + start, to, n);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace cortado::convolution
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cortado::convolution {

namespace {

HWY_EXPORT(tasks);
HWY_EXPORT(forward_task);
HWY_EXPORT(backward_task);
HWY_EXPORT(summing_tasks);
HWY_EXPORT(summing_task);

}  // namespace

void run_forward(const ConvKernel& conv, const kernels::Parallel& parallel) {
  kernels::run_tasks(conv, HWY_DYNAMIC_DISPATCH(tasks)(conv), parallel, &HWY_DYNAMIC_DISPATCH(forward_task));
}

void run_backward(const ConvKernel& conv, const kernels::Parallel& parallel) {
  kernels::run_tasks(conv, HWY_DYNAMIC_DISPATCH(tasks)(conv), parallel, &HWY_DYNAMIC_DISPATCH(backward_task));
  const int64_t sums = HWY_DYNAMIC_DISPATCH(summing_tasks)(conv);
  kernels::run_tasks(conv, sums, parallel, &HWY_DYNAMIC_DISPATCH(summing_task));
}

}  // namespace cortado::convolution
#endif
