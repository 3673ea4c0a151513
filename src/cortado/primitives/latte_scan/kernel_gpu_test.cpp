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
  double size = 1;                                     // of the key logits
  std::vector<int64_t> bounds = {};
  int64_t parts = 1;  // of time
  bool apart = true;  // there is shared memory enough for that
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

void check(const Case& c) {
  at::manual_seed(3);
  const auto rows = c.bounds.empty() ? c.batch : int64_t(c.bounds.size()) - 1;
  const auto numbers = [&](int64_t width, double size) {
    return (at::randn({c.batch, c.tokens, c.heads, width}) * size).to(at::kBFloat16);
  };
  GpuLatteInputs in;
  in.softmax = c.softmax;
  in.query = numbers(c.latents, 1);
  if (!c.softmax) in.query = at::softmax(in.query.to(at::kFloat), -1).to(at::kBFloat16);
  Tensor theta = numbers(c.latents, c.size);
  if (c.unseen) theta.masked_fill_(at::rand_like(theta, at::kFloat).lt(0.3), -INFINITY);
  in.query = alone(in.query);
  in.theta = alone(theta);
  in.v = alone(numbers(c.values, 1));
  in.bounds = c.bounds.empty() ? nullptr : &c.bounds;
  std::vector<Tensor> leaves;
  for (const Tensor& x : {in.query, in.theta, in.v}) leaves.push_back(x.to(at::kDouble).requires_grad_());
  LatteState start;
  if (c.state) {
    in.state = alone(at::randn({rows, c.heads, c.latents, c.values}));
    in.normalizer = alone(at::rand({rows, c.heads, c.latents}) + 1);
    in.maximum = alone(at::randn({rows, c.heads, c.latents}));
    start.state = in.state.to(at::kDouble).requires_grad_();
    start.normalizer = in.normalizer.to(at::kDouble).requires_grad_();
    start.maximum = in.maximum.to(at::kDouble);
    leaves.insert(leaves.end(), {*start.state, *start.normalizer});
  }
  const OptionalTensor bounds = c.bounds.empty() ? OptionalTensor() : OptionalTensor(at::tensor(c.bounds, at::kLong));
  const LatteResult right = latte_scan_reference(leaves[0], leaves[1], leaves[2], c.softmax, start, bounds);
  auto machine = emulated(c.order, c.apart);
  const LatteResult found = read_on_gpu(in, machine, c.parts);
  expect_near(found.o, right.o, "o", c.most);
  expect_near(found.state, right.state, "state", c.most);
  expect_near(found.normalizer, right.normalizer, "normalizer", 1e-5);
  EXPECT_TRUE(at::equal(found.maximum.to(at::kDouble), right.maximum));

  GpuLatteGradients given;
  given.v = alone(numbers(c.values, 1));
  given.state = alone(at::randn(right.state.sizes()) * 0.1);
  given.normalizer = alone(at::randn(right.normalizer.sizes()) * 0.1);
  const auto gradients =
      torch::autograd::grad({right.o, right.state, right.normalizer}, leaves,
                            {given.v.to(at::kDouble), given.state.to(at::kDouble), given.normalizer.to(at::kDouble)});
  const GpuLatteGradients out = differentiate_on_gpu(in, given, machine, c.parts);
  expect_near(out.query, gradients[0], "dquery", 1.5 * c.most);
  expect_near(out.theta, gradients[1], "dtheta", 1.5 * c.most);
  expect_near(out.v, gradients[2], "dv", c.most);
  if (!c.state) return;
  expect_near(out.state, gradients[3], "dstate", c.most);
  expect_near(out.normalizer, gradients[4], "dnormalizer", 1.5 * c.most);
}

// latte_scores: latte's weights, with the keys in the place of the values.
void check_scores(const Case& c) {
  at::manual_seed(5);
  const auto rows = c.bounds.empty() ? c.batch : int64_t(c.bounds.size()) - 1;
  const auto numbers = [&](int64_t width, double size) {
    return (at::randn({c.batch, c.tokens, c.heads, width}) * size).to(at::kBFloat16);
  };
  GpuLatteInputs in;
  in.query = alone(numbers(c.values, 1));
  Tensor theta = numbers(c.latents, c.size);
  if (c.unseen) theta.masked_fill_(at::rand_like(theta, at::kFloat).lt(0.3), -INFINITY);
  in.theta = alone(theta);
  in.v = alone(numbers(c.values, 1));
  in.bounds = c.bounds.empty() ? nullptr : &c.bounds;
  std::vector<Tensor> leaves;
  for (const Tensor& x : {in.query, in.theta, in.v}) leaves.push_back(x.to(at::kDouble).requires_grad_());
  OptionalTensor start, sums, maxima;
  if (c.state) {
    in.state = alone(at::randn({rows, c.heads, c.latents, c.values}));
    in.normalizer = alone(at::rand({rows, c.heads, c.latents}) + 1);
    in.maximum = alone(at::randn({rows, c.heads, c.latents}));
    start = in.state.to(at::kDouble).requires_grad_();
    sums = in.normalizer.to(at::kDouble).requires_grad_();
    maxima = in.maximum.to(at::kDouble);
    leaves.insert(leaves.end(), {*start, *sums});
  }
  const OptionalTensor bounds = c.bounds.empty() ? OptionalTensor() : OptionalTensor(at::tensor(c.bounds, at::kLong));
  const TimeSoftmax keys = time_softmax_reference(leaves[1], sums, maxima, bounds);
  const auto [read, state] =
      gated_scan_reference(leaves[0], keys.keys, leaves[2], keys.gate, "value", 1.0, {}, start, bounds, false);
  const Tensor nothing = keys.normalizer == 0;
  const Tensor right = (read / keys.normalizer.masked_fill(nothing, 1)).masked_fill(nothing, 0);
  auto machine = emulated(c.order, c.apart);
  const LatteResult found = scores_on_gpu(in, machine, c.parts);
  EXPECT_EQ(found.o.scalar_type(), at::kFloat);
  expect_near(found.o, right, "scores", c.most);
  expect_near(found.state, state, "state", c.most);
  expect_near(found.normalizer, keys.last_normalizer, "normalizer", 1e-5);
  EXPECT_TRUE(at::equal(found.maximum.to(at::kDouble), keys.last_maximum));

  GpuLatteGradients given;
  given.v = alone(at::randn(right.sizes()));
  given.state = alone(at::randn(state.sizes()) * 0.1);
  given.normalizer = alone(at::randn(keys.last_normalizer.sizes()) * 0.1);
  const auto gradients =
      torch::autograd::grad({right, state, keys.last_normalizer}, leaves,
                            {given.v.to(at::kDouble), given.state.to(at::kDouble), given.normalizer.to(at::kDouble)});
  const GpuLatteGradients out = differentiate_scores_on_gpu(in, given, machine, c.parts);
  expect_near(out.query, gradients[0], "dq", 1.5 * c.most);
  expect_near(out.theta, gradients[1], "dtheta", 1.5 * c.most);
  expect_near(out.v, gradients[2], "dk", 1.5 * c.most);
  if (!c.state) return;
  expect_near(out.state, gradients[3], "dstate", c.most);
  expect_near(out.normalizer, gradients[4], "dnormalizer", 1.5 * c.most);
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
  check({.tokens = 1100, .heads = 1, .parts = 0});  // as many as fill the machine
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
