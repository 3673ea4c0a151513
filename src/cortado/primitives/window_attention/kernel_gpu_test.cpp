// The GPU's kernels of window attention, on the host (cuda/emulate.h), against the definition in float64.
#define CORTADO_EMULATE
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "cortado/primitives/cuda/emulated_machine.h"
#include "cortado/primitives/window_attention/kernel.cu"
#include "cortado/primitives/window_attention/on_gpu.h"
#include "cortado/testing/kernels.h"

namespace cortado::window_attention_kernel_gpu_test {
namespace {

using testing::alone;
using namespace window;

struct Case {
  int64_t batch = 1, queries = 150, keys = 150, heads = 2, state_heads = 2, key_size = 64, value_size = 64;
  std::optional<int64_t> window = {};
  bool causal = true;
  std::vector<int64_t> bounds = {}, key_bounds = {}, first_key = {};
  gpu::Order order = {};
  int64_t parts = 0;  // parts of the keys
};

template <int kWidth>
void add(cuda::EmulatedMachine::Kernels& to) {
  const std::string variant = kWidth == 64 ? " WIDTH=64" : " WIDTH=128";
  using One = Attention<kWidth>;
  using In = GpuAttention;
  to["attention_forward" + variant] = cuda::kernel_of<In>([](const In& in) { One(in).forward(); });
  to["attention_forward_part" + variant] = cuda::kernel_of<In>([](const In& in) { One(in).forward_part(); });
  to["attention_join" + variant] = cuda::kernel_of<GpuAttentionJoin>(&window::join_keys);
  to["attention_gradient_of_queries" + variant] =
      cuda::kernel_of<In>([](const In& in) { One(in).gradient_of_queries(); });
  to["attention_dots" + variant] = cuda::kernel_of<GpuDots>(&window::dots);
  to["attention_gradient_of_keys" + variant] = cuda::kernel_of<In>([](const In& in) { One(in).gradient_of_keys(); });
}

void expect_near(const Tensor& found, const Tensor& right, const char* what, double most) {
  ASSERT_EQ(found.sizes(), right.sizes()) << what;
  const Tensor seen = right.isfinite();
  EXPECT_TRUE(at::equal(seen, found.isfinite())) << what;
  const auto numbers = [&](const Tensor& x) { return x.to(at::kDouble).masked_fill(at::logical_not(seen), 0); };
  const double size = numbers(right).norm().item<double>() + 1e-30;
  EXPECT_LT((numbers(found) - numbers(right)).norm().item<double>() / size, most) << what;
}

void check(const Case& c) {
  at::manual_seed(9);
  const auto numbers = [&](int64_t tokens, int64_t heads, int64_t width) {
    return alone(at::randn({c.batch, tokens, heads, width}).to(at::kBFloat16));
  };
  const Tensor q = numbers(c.queries, c.heads, c.key_size), k = numbers(c.keys, c.state_heads, c.key_size),
               v = numbers(c.keys, c.state_heads, c.value_size);
  WindowAttentionOptions options{.window = c.window, .causal = c.causal};
  const auto packed = [](const std::vector<int64_t>& bounds) { return at::tensor(bounds, at::kLong); };
  if (!c.bounds.empty()) options.cu_seqlens = packed(c.bounds);
  if (!c.first_key.empty()) options.first_key = packed(c.first_key);
  if (!c.key_bounds.empty()) options.cu_seqlens_k = packed(c.key_bounds);
  std::vector<Tensor> leaves;
  for (const Tensor& x : {q, k, v}) leaves.push_back(x.to(at::kDouble).requires_grad_());
  const auto [o, lse, row_max] = window_attention_reference(leaves[0], leaves[1], leaves[2], options);
  cuda::EmulatedMachine::Kernels kernels;
  add<64>(kernels);
  add<128>(kernels);
  cuda::EmulatedMachine machine(kernels, c.order);
  const AttentionOutputs out = forward_on_gpu(q, k, v, options, machine, c.parts);
  expect_near(out.o, o.detach(), "o", 6e-3);
  expect_near(out.lse, lse.detach(), "lse", 1e-5);
  expect_near(out.row_max, row_max.detach(), "row_max", 1e-5);
  const Tensor grad_o = alone(at::randn(o.sizes()).to(at::kBFloat16)), grad_lse = at::randn(lse.sizes());
  const Tensor seen = lse.detach().isfinite();
  const Tensor loss = (o * grad_o.to(at::kDouble)).sum() + (lse.masked_fill(at::logical_not(seen), 0) * grad_lse).sum();
  const auto right = torch::autograd::grad({loss}, leaves);
  const InputGradients found =
      backward_on_gpu(q, k, v, options, out, {grad_o, grad_lse.masked_fill(at::logical_not(seen), 0)}, machine);
  expect_near(found.q, right[0], "dq", 8e-3);
  expect_near(found.k, right[1], "dk", 8e-3);
  expect_near(found.v, right[2], "dv", 8e-3);
}

TEST(WindowAttentionOnGpu, Windows) {
  for (const bool causal : {true, false}) {
    check({.causal = causal});
    check({.heads = 1, .state_heads = 1, .window = 1, .causal = causal});
    check({.heads = 1, .state_heads = 1, .window = 40, .causal = causal});
    check({.queries = 300, .keys = 300, .heads = 1, .state_heads = 1, .window = 70, .causal = causal});
  }
}

TEST(WindowAttentionOnGpu, SizesAndHeads) {
  check({.batch = 2, .queries = 70, .keys = 70, .heads = 4});
  check({.queries = 70, .keys = 70, .key_size = 128, .value_size = 128, .window = 50});
  check({.queries = 70, .keys = 70, .key_size = 40, .value_size = 96});
  for (const int64_t tokens : {1, 2, 63, 64, 65}) check({.queries = tokens, .keys = tokens, .window = 30});
}

TEST(WindowAttentionOnGpu, QueriesAreAlignedToTheEndOfTheKeys) {
  check({.queries = 3, .keys = 150, .window = 100});
  check({.queries = 150, .keys = 70});  // the first queries see no key
  check({.queries = 70, .keys = 200, .window = 64, .causal = false});
}

TEST(WindowAttentionOnGpu, KeysThatAreNotThere) {
  check({.batch = 2, .queries = 1, .keys = 100, .window = 100, .first_key = {70, 0}});
  check({.batch = 2, .queries = 150, .keys = 150, .window = 90, .first_key = {70, 5}});  // some queries see no key
}

TEST(WindowAttentionOnGpu, PartsOfTheKeys) {
  for (const int64_t parts : {0, 2, 3, 7}) {
    check({.queries = 1, .keys = 400, .parts = parts});
    check({.batch = 2, .queries = 5, .keys = 333, .heads = 4, .window = 150, .parts = parts});
  }
  check({.queries = 64, .keys = 500, .key_size = 128, .value_size = 96, .parts = 3});
  check({.queries = 20, .keys = 300, .window = 40, .causal = false, .parts = 2});
  check({.queries = 30, .keys = 10, .parts = 2});  // the first queries see no key
  check({.batch = 2, .queries = 3, .keys = 300, .first_key = {299, 140}, .parts = 4});
  check({.batch = 2, .queries = 3, .keys = 200, .first_key = {200, 0}, .parts = 3});  // one row sees no key
  for (const bool backwards : {false, true}) {
    for (const bool late : {false, true})
      check({.queries = 2, .keys = 400, .order = {backwards, true, late}, .parts = 3});
  }
}

TEST(WindowAttentionOnGpu, Packed) {
  check({.queries = 200, .keys = 200, .window = 60, .bounds = {0, 3, 3, 130, 200}});
  check({.queries = 100, .keys = 200, .bounds = {0, 30, 100}, .key_bounds = {0, 120, 200}});
}

TEST(WindowAttentionOnGpu, EveryOrderOfThreadsAndCopies) {
  for (const bool backwards : {false, true}) {
    for (const bool alone : {false, true}) {
      for (const bool late : {false, true}) {
        check({.queries = 200,
               .keys = 200,
               .heads = 1,
               .state_heads = 1,
               .window = 100,
               .order = {backwards, alone, late}});
      }
    }
  }
}

}  // namespace
}  // namespace cortado::window_attention_kernel_gpu_test
