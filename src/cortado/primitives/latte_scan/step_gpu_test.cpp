// The GPU's kernel of one token of Latte, on the host (cuda/emulate.h), against the definition in float64.
#define CORTADO_EMULATE
#include <gtest/gtest.h>

#include "cortado/primitives/cuda/emulated_machine.h"
#include "cortado/primitives/latte_scan/kernel_step.cu"
#include "cortado/primitives/latte_scan/step_on_gpu.h"
#include "cortado/testing/gpu_kernels.h"
#include "cortado/testing/kernels.h"

namespace cortado::latte_step_gpu_test {
namespace {

using testing::alone, testing::before_the_end, testing::expect_near;
using namespace latent;

struct Case {
  int64_t batch = 3, heads = 4, theta_heads = 4, value_heads = 4, latents = 64, values = 64;
  bool softmax = true, state = true, unseen = false;  // unseen: some logits are -inf, and some of the state's latents
  double size = 1;                                    // scale of the key logits
  at::ScalarType type = at::kFloat;
  gpu::Order order = {};
};

GpuLatteInputs inputs(const Case& c) {
  const auto numbers = [&](int64_t heads, int64_t width, double size) {
    return (at::randn({c.batch, 1, heads, width}) * size).to(c.type);
  };
  GpuLatteInputs in;
  in.softmax = c.softmax;
  in.query = alone(numbers(c.heads, c.latents, 1));
  Tensor theta = numbers(c.theta_heads, c.latents, c.size);
  in.v = alone(numbers(c.value_heads, c.values, 1));
  const int64_t state_heads = std::max(c.theta_heads, c.value_heads);
  if (c.state) {
    in.state = before_the_end(at::randn({c.batch, state_heads, c.latents, c.values}));
    in.normalizer = alone(at::rand({c.batch, state_heads, c.latents}) + 1);
    in.maximum = alone(at::randn({c.batch, state_heads, c.latents}) * c.size);
  }
  if (c.unseen) {
    theta.masked_fill_(at::rand_like(theta, at::kFloat).lt(0.5), -INFINITY);
    const Tensor none = at::rand({c.batch, state_heads, c.latents}).lt(0.5);
    for (Tensor* x : {&in.state, &in.normalizer}) {
      if (x->defined()) x->masked_fill_(x->dim() == 4 ? none.unsqueeze(-1) : none, 0);
    }
    if (in.maximum.defined()) in.maximum.masked_fill_(none, -INFINITY);
  }
  in.theta = alone(theta);
  return in;
}

void check(const Case& c) {
  at::manual_seed(13);
  const GpuLatteInputs in = inputs(c);
  const auto wide = [](const Tensor& x) { return x.defined() ? OptionalTensor(x.to(at::kDouble)) : std::nullopt; };
  const LatteResult right = latte_scan_reference(*wide(in.query), *wide(in.theta), *wide(in.v), c.softmax,
                                                 {wide(in.state), wide(in.normalizer), wide(in.maximum)});
  const auto run = cuda::kernel_of<GpuLatteStep>([](const GpuLatteStep& step) { LatteStep(step).run(); });
  cuda::EmulatedMachine machine({{"latte_step", run}}, c.order);
  const LatteResult found = step_on_gpu(in, machine);
  EXPECT_EQ(found.o.scalar_type(), c.type);
  expect_near(found.o, right.o, "o", c.type == at::kFloat ? 1e-5 : 4e-3);
  expect_near(found.state, right.state, "state", 1e-5);
  expect_near(found.normalizer, right.normalizer, "normalizer", 1e-5);
  EXPECT_TRUE(at::equal(found.maximum.to(at::kDouble), right.maximum));
}

TEST(LatteStepOnGpu, IsTheDefinition) {
  for (const bool softmax : {true, false}) {
    for (const bool state : {true, false}) {
      check({.softmax = softmax, .state = state});
      check({.softmax = softmax, .state = state, .unseen = true});
    }
  }
}

// Macchiato: the softmax has one more state, whose values are given.
void check_mixed(Case c) {
  at::manual_seed(14);
  GpuLatteInputs in = inputs(c);
  const int64_t heads = std::max(c.heads, in.theta.size(2));
  in.query = alone((at::randn({c.batch, 1, heads, c.latents + 1}) * c.size).to(c.type));
  in.query.select(3, 0).select(0, 0).fill_(100);  // above all others
  const Tensor near = alone(at::randn({c.batch, 1, heads, c.values}).to(c.type));
  const auto wide = [](const Tensor& x) { return x.defined() ? OptionalTensor(x.to(at::kDouble)) : std::nullopt; };
  const Tensor p = at::softmax(*wide(in.query), -1);
  const LatteResult right = latte_scan_reference(p.narrow(3, 1, c.latents), *wide(in.theta), *wide(in.v), false,
                                                 {wide(in.state), wide(in.normalizer), wide(in.maximum)});
  const auto run = cuda::kernel_of<GpuLatteStep>([](const GpuLatteStep& step) { LatteStep(step).run(); });
  cuda::EmulatedMachine machine({{"latte_step", run}}, c.order);
  const LatteResult found = mixed_step_on_gpu(in, near, machine);
  expect_near(found.o, right.o + p.narrow(3, 0, 1) * *wide(near), "o", c.type == at::kFloat ? 1e-5 : 4e-3);
  expect_near(found.state, right.state, "state", 1e-5);
}

TEST(LatteStepOnGpu, AStateMoreIsMixed) {
  check_mixed({});
  check_mixed({.heads = 4, .theta_heads = 2, .value_heads = 2, .latents = 128, .values = 40, .type = at::kBFloat16});
  check_mixed({.latents = 7, .unseen = true, .size = 1e4});
  check_mixed({.batch = 1, .latents = 33, .order = {true, true, false}});
}

TEST(LatteStepOnGpu, SizesAndTypes) {
  check({.latents = 128, .values = 200});
  check({.latents = 1, .values = 1});
  check({.heads = 2, .theta_heads = 2, .value_heads = 2, .latents = 5, .values = 33});
  check({.type = at::kBFloat16});
  check({.softmax = false, .type = at::kHalf});
}

TEST(LatteStepOnGpu, HeadsThatShare) {
  check({.heads = 4, .theta_heads = 2, .value_heads = 2});
  check({.heads = 4, .theta_heads = 1, .value_heads = 2, .softmax = false});
  check({.heads = 4, .theta_heads = 4, .value_heads = 1});
  check({.heads = 1, .theta_heads = 2, .value_heads = 1});  // one query reads both states
}

TEST(LatteStepOnGpu, LogitsOfAnySize) {
  check({.size = 1e4});
  check({.unseen = true, .size = 1e4});
}

TEST(LatteStepOnGpu, EveryOrderOfThreads) {
  for (const bool backwards : {false, true}) {
    for (const bool ahead : {false, true}) {
      check({.batch = 1, .heads = 4, .theta_heads = 2, .value_heads = 2, .order = {backwards, ahead, false}});
    }
  }
}

}  // namespace
}  // namespace cortado::latte_step_gpu_test
