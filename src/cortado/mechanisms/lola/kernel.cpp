// Multiplies tiles of candidates' features by one head's sums. Compiled once per instruction set.
#include "cortado/mechanisms/lola/kernel.h"

#include <math.h>
#include <string.h>

#include <algorithm>

#include "cortado/primitives/kernels/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cortado/mechanisms/lola/kernel.cpp"
#include <hwy/foreach_target.h>
// after foreach_target
#include "cortado/primitives/kernels/products-inl.h"
#include "cortado/primitives/kernels/scratch.h"
#include "cortado/primitives/kernels/tasks.h"

namespace cortado::lola_kernel {
namespace {

// Marks the `kept` candidates of n with the highest scores in `stays`; among equal scores the first stay. Two scores
// are equal if they lie within `near` of each other or within the share `tie` of their size; equality is transitive.
// `order` is scratch memory for n numbers. Compiled once and not per instruction set: functions of the standard library
// must not be compiled for other machines.
void choose(const float* scores, int64_t n, int64_t kept, float tie, float near, int32_t* order, bool* stays);

}  // namespace
}  // namespace cortado::lola_kernel

HWY_BEFORE_NAMESPACE();
namespace cortado::lola_kernel {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using namespace kernels;
using namespace kernels::HWY_NAMESPACE;

// The work for one head of one sequence.
struct Task {
  int64_t batch, head;
  float *scores, *sums;  // [candidates], [F, V+1] padded
  bool* stays;           // [candidates]
};

HWY_INLINE const float* pair(const Candidates& x, int64_t cached, const Task& task, int64_t i) {
  const bool old = i < cached;
  return address<float>(old ? x.cached : x.leaving, {task.batch, task.head, old ? i : i - cached, 1, 1}, 0);
}

// Sizes rounded up to whole vectors and tiles.
struct Padded {
  int64_t answer, tiled_features;

  explicit Padded(const Evict& call)
      : answer(round_up(call.values + 1, kLanes)), tiled_features(round_up(call.features, kTokens)) {}
};

// ‖answer / its last number - v‖. If the last number is 0, the answer is taken as 0. A NaN result counts as infinity.
// Raises `longest` to ‖v‖² if that is larger.
HWY_INLINE float error(const float* answer, const float* v, int64_t n, float& longest) {
  const Floats d;
  const float total = answer[n];
  const Vec share = hn::Set(d, total == 0 ? 0.0f : 1.0f / total);
  Vec sum = hn::Zero(d), length = hn::Zero(d);
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t some = n - i < kLanes ? n - i : kLanes;
    const Vec value = load_some(v + i, some), wrong = hn::MulSub(share, load_some(answer + i, some), value);
    sum = hn::MulAdd(wrong, wrong, sum);
    length = hn::MulAdd(value, value, length);
  }
  const float own = hn::GetLane(hn::SumOfLanes(d, length));
  if (own > longest && own < INFINITY) longest = own;
  const float square = hn::GetLane(hn::SumOfLanes(d, sum));
  return square == square ? sqrtf(square) : INFINITY;
}

// Fills the task's sums and scores. Returns the length of the longest v.
float score(const Evict& call, const Task& task, Scratch& scratch) {
  const Padded size(call);
  const int64_t candidates = call.cached + call.leaving, width = call.values + 1;
  const float* sums = call.sums + (task.batch * call.heads + task.head) * call.features * width;
  const PaddedMatrix padded{task.sums, call.features, width};
  padded.read(sums);
  fill(task.sums + call.features * size.answer, (size.tiled_features - call.features) * size.answer, 0);
  const auto read = [&](int64_t first, int64_t count, float* tile, int64_t row) {
    for (int64_t i = 0; i < count; ++i) {
      read_row(pair(call.phi, call.cached, task, first + i), 1, call.features, 1.0f, tile + i * row, row);
    }
  };
  float longest = 0;
  for_products(0, candidates, padded, scratch, read, [&](int64_t i, const float* answer) {
    task.scores[i] = error(answer, pair(call.v, call.cached, task, i), call.values, longest);
  });
  return sqrtf(longest);
}

// Copies the candidates that stay to the new cache and adds the others to the sums.
void move(const Evict& call, const Task& task, Scratch& scratch) {
  const Padded size(call);
  const int64_t candidates = call.cached + call.leaving, width = call.values + 1, gone = candidates - call.kept;
  float *phi = scratch.take(gone * size.tiled_features), *v = scratch.take(gone * size.answer);
  const auto keep = [&](const Timed& to, int64_t place, const float* from, int64_t n) {
    memcpy(address<float>(to, {task.batch, task.head, place, 1, 1}, 0), from, static_cast<size_t>(n) * sizeof(float));
  };
  int64_t stayed = 0, went = 0;
  for (int64_t i = 0; i < candidates; ++i) {
    const float* value = pair(call.v, call.cached, task, i);
    if (task.stays[i]) {
      keep(call.new_keys, stayed, pair(call.k, call.cached, task, i), call.keys);
      keep(call.new_values, stayed++, value, call.values);
      continue;
    }
    const float* features = pair(call.phi, call.cached, task, i);
    read_row(features, 1, call.features, 1.0f, phi + went * size.tiled_features, size.tiled_features);
    read_row(value, 1, call.values, 1.0f, v + went * size.answer, size.answer);
    v[went++ * size.answer + call.values] = 1.0f;
  }
  multiply<Start::kAdd>({.a = Matrix{phi, size.tiled_features}.transposed(),
                         .b = {v, size.answer},
                         .out = task.sums,
                         .out_row = size.answer,
                         .rows = size.tiled_features,
                         .columns = size.answer,
                         .depth = gone,
                         .from = {task.sums, size.answer}});
  float* sums = call.new_sums + (task.batch * call.heads + task.head) * call.features * width;
  for (int64_t i = 0; i < call.features; ++i) write_row(task.sums + i * size.answer, sums + i * width, 1, width);
}

void evict_head(const Evict& call, int64_t number) {
  Scratch scratch;
  const Padded size(call);
  const int64_t candidates = call.cached + call.leaving;
  auto* order = reinterpret_cast<int32_t*>(scratch.take(candidates));
  const Task task{.batch = number / call.heads,
                  .head = number % call.heads,
                  .scores = scratch.take(candidates),
                  .sums = scratch.take(size.tiled_features * size.answer),
                  .stays = reinterpret_cast<bool*>(scratch.take(candidates))};
  const float longest = score(call, task, scratch);
  choose(task.scores, candidates, call.kept, call.tie, call.tie * longest, order, task.stays);
  move(call, task, scratch);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace cortado::lola_kernel
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cortado::lola_kernel {
namespace {

HWY_EXPORT(evict_head);

void choose(const float* scores, int64_t n, int64_t kept, float tie, float near, int32_t* order, bool* stays) {
  if (kept == 0) return (void)std::fill(stays, stays + n, false);
  for (int64_t i = 0; i < n; ++i) order[i] = static_cast<int32_t>(i);
  std::nth_element(order, order + kept - 1, order + n, [&](int32_t a, int32_t b) { return scores[a] > scores[b]; });
  // Finds the range [low, high] of scores that are equal to the last one that stays, by widening it until the next
  // score on either side is not equal.
  float high = scores[order[kept - 1]], low = high;
  const auto equal = [&](float a, float b) { return a - b <= std::max(near, tie * fabsf(a)); };  // a > b
  for (bool more = true; more;) {
    float above = INFINITY, below = -INFINITY;
    for (int64_t i = 0; i < n; ++i) {
      if (scores[i] > high) above = std::min(above, scores[i]);
      if (scores[i] < low) below = std::max(below, scores[i]);
    }
    more = false;
    if (above > high && above < INFINITY && equal(above, high)) high = above, more = true;
    if (below < low && below > -INFINITY && equal(low, below)) low = below, more = true;
  }
  int64_t left = kept;
  for (int64_t i = 0; i < n; ++i) left -= scores[i] > high;
  for (int64_t i = 0; i < n; ++i) {
    const bool among = scores[i] >= low && scores[i] <= high;
    stays[i] = scores[i] > high || (among && left-- > 0);
  }
}

}  // namespace

void evict(const Evict& call, const Parallel& parallel) {
  kernels::run_tasks(call, call.batch * call.heads, parallel, &HWY_DYNAMIC_DISPATCH(evict_head));
}

}  // namespace cortado::lola_kernel
#endif
