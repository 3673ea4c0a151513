// The GPU's kernels, run block by block on the host (cuda/emulate.h) by the code that launches them on a GPU, against the
// definition in float64: outputs, states and every gradient.
#define CORTADO_EMULATE
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "cortado/base/error.h"
#include "cortado/primitives/cuda/emulated_machine.h"
#include "cortado/primitives/gated_scan/op.h"
#include "cortado/primitives/latte_scan/kernel.cu"
#include "cortado/primitives/latte_scan/on_gpu.h"
#include "cortado/primitives/time_softmax/op.h"
#include "cortado/testing/gpu_kernels.h"
#include "cortado/testing/kernels.h"

namespace cortado::latte_kernel_gpu_test {
namespace {

using testing::alone, testing::expect_near;
using namespace latent;

struct Case {
  int64_t latents = 64, values = 64, batch = 1, tokens = 150, heads = 2;
  bool softmax = true, state = false, unseen = false;  // unseen: some logits are -inf
  double size = 1;                                     // scale of the key logits
  std::vector<int64_t> bounds = {};
  int64_t parts = 1;  // parts of time
  bool apart = true;  // the machine has enough shared memory for APART
  gpu::Order order = {};
  double most = 6e-3;
};

template <int kKeys, Task kTask, bool kApart>
void walk(const GpuLatte& in) {
  Latte<kKeys, kTask, kApart>(in).run();
}

template <int kKeys, bool kApart>
void add_walks(cuda::EmulatedMachine::Kernels& to) {
  const std::string variant = concat(" KEYS=", kKeys, kApart ? " APART" : "");
  const auto add = [&](const char* name, void (*body)(const GpuLatte&)) {
    to[name + variant] = cuda::kernel_of<GpuLatte>(body);
  };
  add("latte_read", walk<kKeys, Task::kRead, kApart>);
  add("latte_read_states", walk<kKeys, Task::kReadStates, kApart>);
  add("latte_weights", walk<kKeys, Task::kWeights, kApart>);
  add("latte_values", walk<kKeys, Task::kValues, kApart>);
  add("latte_logits", walk<kKeys, Task::kLogits, kApart>);
  add("latte_logits_states", walk<kKeys, Task::kLogitsStates, kApart>);
  to["latte_join" + variant] = cuda::kernel_of<GpuLatteJoin>(&latent::join_parts);
  to["latte_query_gradient" + variant] = cuda::kernel_of<GpuQueryGradient>(&latent::query_gradient);
}

cuda::EmulatedMachine emulated(gpu::Order order, bool apart) {
  cuda::EmulatedMachine::Kernels kernels;
  add_walks<64, true>(kernels);
  add_walks<64, false>(kernels);
  add_walks<128, false>(kernels);
  return cuda::EmulatedMachine(kernels, order, apart ? 227 << 10 : 160 << 10);
}

// A case's tensors, as they are given to the kernels and, with gradients, to the definition in float64.
struct Given {
  GpuLatteInputs in;
  std::vector<Tensor> leaves;  // query, theta, v, and with a state also the state and its sums
  LatteState start;
  OptionalTensor bounds;

  // The query has a number for each latent, or so many.
  explicit Given(const Case& c, std::optional<int64_t> query_width = {}, uint64_t seed = 3) {
    at::manual_seed(seed);
    const auto rows = c.bounds.empty() ? c.batch : int64_t(c.bounds.size()) - 1;
    in.softmax = c.softmax;
    in.query = numbers(c, query_width.value_or(c.latents), 1);
    if (!c.softmax) in.query = at::softmax(in.query.to(at::kFloat), -1).to(at::kBFloat16);
    Tensor theta = numbers(c, c.latents, c.size);
    if (c.unseen) theta.masked_fill_(at::rand_like(theta, at::kFloat).lt(0.3), -INFINITY);
    in.query = alone(in.query);
    in.theta = alone(theta);
    in.v = alone(numbers(c, c.values, 1));
    in.bounds = c.bounds.empty() ? nullptr : &c.bounds;
    if (!c.bounds.empty()) bounds = at::tensor(c.bounds, at::kLong);
    for (const Tensor& x : {in.query, in.theta, in.v}) leaves.push_back(x.to(at::kDouble).requires_grad_());
    if (!c.state) return;
    in.state = alone(at::randn({rows, c.heads, c.latents, c.values}));
    in.normalizer = alone(at::rand({rows, c.heads, c.latents}) + 1);
    in.maximum = alone(at::randn({rows, c.heads, c.latents}));
    start.state = in.state.to(at::kDouble).requires_grad_();
    start.normalizer = in.normalizer.to(at::kDouble).requires_grad_();
    start.maximum = in.maximum.to(at::kDouble);
    leaves.insert(leaves.end(), {*start.state, *start.normalizer});
  }

  static Tensor numbers(const Case& c, int64_t width, double size) {
    return (at::randn({c.batch, c.tokens, c.heads, width}) * size).to(at::kBFloat16);
  }
};

void expect_states(const LatteResult& found, const LatteResult& right, double most) {
  expect_near(found.state, right.state, "state", most);
  expect_near(found.normalizer, right.normalizer, "normalizer", 1e-5);
  EXPECT_TRUE(at::equal(found.maximum.to(at::kDouble), right.maximum));
}

// Gradients of what comes out, and the definition's by those of them that are wide.
GpuLatteGradients gradients_of(const LatteResult& right, const Tensor& grad_o) {
  return {{},
          {},
          alone(grad_o),
          alone(at::randn(right.state.sizes()) * 0.1),
          alone(at::randn(right.normalizer.sizes()) * 0.1)};
}
void expect_gradients(const GpuLatteGradients& out, const LatteResult& right, const Given& given,
                      const GpuLatteGradients& of, double most, double most_v) {
  const auto wide = [](const Tensor& x) { return x.to(at::kDouble); };
  const auto gradients = torch::autograd::grad({right.o, right.state, right.normalizer}, given.leaves,
                                               {wide(of.v), wide(of.state), wide(of.normalizer)});
  expect_near(out.query, gradients[0], "dquery", 1.5 * most);
  expect_near(out.theta, gradients[1], "dtheta", 1.5 * most);
  expect_near(out.v, gradients[2], "dv", most_v);
  if (!given.start.state) return;
  expect_near(out.state, gradients[3], "dstate", most);
  expect_near(out.normalizer, gradients[4], "dnormalizer", 1.5 * most);
}

void check(const Case& c) {
  const Given given(c);
  const auto& leaves = given.leaves;
  const LatteResult right = latte_scan_reference(leaves[0], leaves[1], leaves[2], c.softmax, given.start, given.bounds);
  auto machine = emulated(c.order, c.apart);
  const LatteResult found = read_on_gpu(given.in, machine, c.parts);
  expect_near(found.o, right.o, "o", c.most);
  expect_states(found, right, c.most);
  const auto of = gradients_of(right, Given::numbers(c, c.values, 1));
  expect_gradients(differentiate_on_gpu(given.in, of, machine, c.parts), right, given, of, c.most, c.most);
}

// latte_scores: Latte's weights, with keys as values.
void check_scores(const Case& c) {
  const Given given(c, c.values, 5);
  const auto& leaves = given.leaves;
  const LatteState& start = given.start;
  const TimeSoftmax keys = time_softmax_reference(leaves[1], start.normalizer, start.maximum, given.bounds);
  const auto [read, state] = gated_scan_reference(leaves[0], keys.keys, leaves[2], keys.gate, "value", 1.0, {},
                                                  start.state, given.bounds, false);
  const Tensor nothing = keys.normalizer == 0;
  const LatteResult right{(read / keys.normalizer.masked_fill(nothing, 1)).masked_fill(nothing, 0), state,
                          keys.last_normalizer, keys.last_maximum};
  auto machine = emulated(c.order, c.apart);
  const LatteResult found = scores_on_gpu(given.in, machine, c.parts);
  EXPECT_EQ(found.o.scalar_type(), at::kFloat);
  expect_near(found.o, right.o, "scores", c.most);
  expect_states(found, right, c.most);
  const auto of = gradients_of(right, at::randn(right.o.sizes()));
  expect_gradients(differentiate_scores_on_gpu(given.in, of, machine, c.parts), right, given, of, c.most, 1.5 * c.most);
}

TEST(LatteOnGpu, ScoresOfSlots) {
  check_scores({.state = true});
  check_scores({.state = true, .parts = 3});
  check_scores({.latents = 16, .values = 96, .batch = 2, .tokens = 70, .heads = 3});
  check_scores({.latents = 128, .values = 32, .tokens = 140, .unseen = true});
  check_scores({.tokens = 300, .state = true, .bounds = {0, 3, 3, 190, 300}, .parts = 4});
  check_scores({.heads = 1, .state = true, .size = 40, .parts = 2, .most = 1e-2});  // logits that rise steeply
  check_scores({.state = true, .apart = false});
}

TEST(LatteOnGpu, EveryLength) {
  for (const int64_t tokens : {1, 2, 63, 64, 65, 128, 333}) check({.tokens = tokens, .heads = 1});
}

TEST(LatteOnGpu, HeadsRowsAndWidths) {
  check({.batch = 2, .heads = 3});
  check({.latents = 16, .values = 32, .batch = 2, .tokens = 70});
  check({.latents = 72, .values = 96, .tokens = 140, .state = true});
  check({.latents = 128, .values = 64, .tokens = 140});
  check({.latents = 64, .values = 128, .tokens = 140});
}

TEST(LatteOnGpu, TheSameWarpsPrepareAndMultiply) {
  check({.state = true, .apart = false});
  check({.tokens = 300, .heads = 1, .size = 40, .parts = 2, .apart = false, .most = 1e-2});
  check({.tokens = 200, .heads = 1, .apart = false, .order = {true, true, true}});
}

TEST(LatteOnGpu, StatesThatGoOn) {
  check({.state = true});
  check({.softmax = false, .state = true});
}

TEST(LatteOnGpu, LogitsThatRiseSteeply) {
  check({.heads = 1, .state = true, .size = 40, .most = 1e-2});
  check({.latents = 96, .values = 72, .heads = 1, .size = 1e4, .most = 1e-2});
  check({.heads = 1, .softmax = false, .size = 1e4, .parts = 2, .most = 1e-2});
}

TEST(LatteOnGpu, LogitsThatAreNotThere) {
  check({.unseen = true});
  check({.state = true, .unseen = true, .parts = 2});
}

TEST(LatteOnGpu, PartsOfTimeAndPacked) {
  check({.tokens = 500, .heads = 1, .state = true, .parts = 3});
  check({.latents = 128, .values = 72, .batch = 2, .tokens = 200, .heads = 1, .parts = 2});
  check({.tokens = 300, .state = true, .bounds = {0, 3, 3, 190, 300}, .parts = 4});
  check({.tokens = 200, .bounds = {0, 65, 200}});
  check({.tokens = 1100, .heads = 1, .parts = 0});  // parts: as many as fill the machine
}

TEST(LatteOnGpu, EveryOrderOfThreadsAndCopies) {
  for (const bool backwards : {false, true}) {
    for (const bool alone : {false, true}) {
      for (const bool late : {false, true}) {
        check({.tokens = 200, .heads = 1, .order = {backwards, alone, late}});
        check({.latents = 128, .tokens = 70, .heads = 1, .size = 60, .order = {backwards, alone, late}, .most = 1e-2});
      }
    }
  }
}

}  // namespace
}  // namespace cortado::latte_kernel_gpu_test
