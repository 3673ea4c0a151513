// The kernel on every instruction set this machine has, against the definition in float64.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "cortado/base/error.h"
#include "cortado/primitives/window_attention/op.h"
#include "cortado/testing/compare.h"
#include "cortado/testing/kernels.h"

namespace cortado::window_kernel_test {
namespace {

struct Case {
  int64_t queries = 70, keys = 70, window = 20, key_size = 16, value_size = 16;
  int64_t batch = 2, groups = 2, repeat = 1;
  bool causal = true;
  std::optional<double> softcap = {};
  std::vector<int64_t> bounds = {}, first_key = {};
  int64_t extra = 0, mask_heads = -1;  // keys of the extra set; heads of its mask, 0: one for all, -1: no mask
  bool outer_grads = true;             // also of lse and row_max; with an extra set only of lse
  double magnitude = 1;

  std::string text() const {
    return concat("Tq ", queries, " Tk ", keys, " w ", window, " K ", key_size, " V ", value_size, " groups ", groups,
                  " repeat ", repeat, causal ? " causal" : " both", softcap ? " softcap" : "",
                  bounds.empty() ? "" : " packed", extra > 0 ? concat(" extra ", extra, " mask ", mask_heads) : "");
  }
};

int64_t sequences(const Case& c) { return c.bounds.empty() ? c.batch : static_cast<int64_t>(c.bounds.size()) - 1; }

std::vector<Tensor> random_inputs(const Case& c) {
  at::manual_seed(5);
  const auto random = [&](int64_t tokens, int64_t heads, int64_t size) {
    return at::randn({c.batch, tokens, heads, size}, at::kDouble);
  };
  std::vector<Tensor> inputs = {random(c.queries, c.groups * c.repeat, c.key_size) * c.magnitude,
                                random(c.keys, c.groups, c.key_size), random(c.keys, c.groups, c.value_size)};
  if (c.extra == 0) return inputs;
  const int64_t rows = sequences(c);  // a set's keys and values may differ in their head counts
  inputs.push_back(at::randn({rows, c.extra, c.groups * c.repeat, c.key_size}, at::kDouble));
  inputs.push_back(at::randn({rows, c.extra, c.groups, c.value_size}, at::kDouble));
  return inputs;
}

WindowAttentionOptions options_of(const Case& c) {
  WindowAttentionOptions options;
  options.window = c.window;
  options.causal = c.causal;
  options.softcap = c.softcap;
  if (!c.bounds.empty()) options.cu_seqlens = at::tensor(c.bounds, at::kLong);
  if (!c.first_key.empty()) options.first_key = at::tensor(c.first_key, at::kLong);
  if (c.mask_heads >= 0) {
    at::manual_seed(17);
    const Tensor by_head = at::rand({sequences(c), std::max<int64_t>(c.mask_heads, 1), c.extra}) < 0.5;
    options.extra_mask = c.mask_heads == 0 ? by_head.squeeze(1) : by_head;
    options.extra_mask->select(0, 0).fill_(false);  // one row sees none
  }
  return options;
}

// o, lse, row_max and the gradients of q, k, v.
template <typename Attention>
std::vector<Tensor> results(const Attention& attention, const Case& c, std::vector<Tensor> inputs) {
  for (Tensor& x : inputs) x = x.detach().requires_grad_();
  WindowAttentionOptions options = options_of(c);
  if (c.extra > 0) {
    options.extra_k = inputs[3];
    options.extra_v = inputs[4];
  }
  const auto [o, lse, row_max] = attention(inputs[0], inputs[1], inputs[2], options);
  at::manual_seed(11);
  const auto weight = [](const Tensor& x) { return at::randn(x.sizes(), at::kDouble).to(x.scalar_type()); };
  std::vector<Tensor> outputs{o}, weights{testing::awkward(weight(o), 0)};
  if (c.outer_grads) {
    outputs.push_back(lse);
    weights.push_back(weight(lse));
  }
  if (c.outer_grads && c.extra == 0) {
    outputs.push_back(row_max);
    weights.push_back(weight(row_max));
  }
  std::vector<Tensor> all{o.detach(), lse.detach(), row_max.detach()};
  for (const Tensor& grad : torch::autograd::grad(outputs, inputs, weights)) all.push_back(grad);
  return all;
}

void check_everywhere(const Case& c, at::ScalarType type, double tolerance, int64_t layout = -1) {
  const testing::AnyIsa restore;
  const testing::Poisoned poisoned;
  const char* const names[] = {"o", "lse", "row_max", "dq", "dk", "dv", "d extra_k", "d extra_v"};
  std::vector<Tensor> given = random_inputs(c), exact;
  for (Tensor& x : given) {
    x = x.to(type);
    exact.push_back(x.to(at::kDouble));
    if (layout >= 0) x = testing::awkward(x, layout);
  }
  const auto right = results(window_attention_reference, c, exact);
  for (const std::string& isa : available_isas()) {
    select_isa(isa);
    const auto got = results(window_attention, c, given);
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_LE(testing::relative_error(got[i], right[i]), tolerance) << names[i] << " " << isa << " " << c.text();
    }
  }
}

TEST(WindowAttentionKernel, EverySizeOnEveryInstructionSet) {
  const std::vector<int64_t> sizes{1, 7, 8, 16, 17, 31, 64, 65, 128};
  int64_t number = 0;
  for (const int64_t keys : sizes) {
    for (const int64_t values : sizes) {
      const int64_t tokens = 8 + number * 17 % 130;
      check_everywhere({.queries = tokens, .keys = tokens, .key_size = keys, .value_size = values}, at::kFloat, 2e-5,
                       number % testing::kAwkward);
      ++number;
    }
  }
}

TEST(WindowAttentionKernel, EveryOption) {
  for (const bool causal : {true, false}) {
    for (const int64_t window : {1, 3, 64, 65, 1000}) {
      for (const int64_t keys : {1, 8, 64, 129, 200}) {
        Case c{.queries = 65, .keys = keys, .window = window, .repeat = 1 + window % 3, .causal = causal};
        if (keys % 2 == 1) c.softcap = 2.0;
        if (keys == 200) c.first_key = {0, 180};
        check_everywhere(c, at::kFloat, 2e-5);
      }
    }
  }
}

TEST(WindowAttentionKernel, PackedSequences) {
  for (const int64_t window : {1, 9, 1000}) {
    Case c{.queries = 260, .keys = 260, .window = window, .batch = 1, .repeat = 2};
    c.bounds = {0, 0, 1, 1, 70, 134, 135, 260, 260};
    check_everywhere(c, at::kFloat, 2e-5);
  }
}

// The extra set's keys are a call of their own, whose mask is an order of them.
TEST(WindowAttentionKernel, ExtraSets) {
  for (const int64_t extra : {1, 16, 70}) {
    for (const int64_t mask_heads : {-1, 0, 1, 2, 4}) {
      for (const int64_t queries : {1, 5, 70}) {
        Case c{.queries = queries, .window = 9, .repeat = 2, .extra = extra, .mask_heads = mask_heads};
        if (extra == 16) c.softcap = 2.0;
        if (extra == 70) c.first_key = {0, 70};  // one row's window has no visible key
        check_everywhere(c, at::kFloat, 2e-5);
        if (extra == 16) check_everywhere(c, at::kBFloat16, 2e-2, 0);
      }
    }
  }
  check_everywhere({.value_size = 4, .repeat = 2, .extra = 9}, at::kFloat, 2e-5);  // value_size equals the head count
  for (const int64_t mask_heads : {-1, 0}) {
    Case c{.queries = 160, .keys = 160, .batch = 1, .repeat = 2, .extra = 20, .mask_heads = mask_heads};
    c.bounds = {0, 0, 1, 90, 160, 160};
    check_everywhere(c, at::kFloat, 2e-5);
  }
}

TEST(WindowAttentionKernel, SixteenBitTypes) {
  for (const int64_t size : {16, 20}) {
    const Case c{.key_size = size, .value_size = size, .outer_grads = false};
    check_everywhere(c, at::kBFloat16, 2e-2, 0);
    check_everywhere(c, at::kHalf, 3e-3);
  }
}

TEST(WindowAttentionKernel, LargeLogits) {
  check_everywhere({.outer_grads = false, .magnitude = 300}, at::kFloat, 2e-3);
}

TEST(WindowAttentionKernel, FewQueries) {
  for (const int64_t queries : {1, 3, 7}) {
    for (const int64_t keys : {7, 33, 130}) {
      for (const int64_t size : {1, 17, 64}) {
        const Case c{.queries = queries,
                     .keys = keys,
                     .window = 40,
                     .key_size = size,
                     .value_size = 80 - size,
                     .repeat = 1 + size % 3,
                     .causal = queries != 3};
        check_everywhere(c, at::kFloat, 1e-5, keys % testing::kAwkward);
      }
    }
  }
  // Read in parts of 512 keys, of which some queries and rows see none.
  for (const int64_t keys : {512, 513, 1025, 1300}) {
    check_everywhere({.queries = 2, .keys = keys, .window = 5000, .repeat = 3, .first_key = {0, keys - 2}}, at::kFloat,
                     1e-5);
    check_everywhere({.queries = 3, .keys = keys, .window = 40, .value_size = 20, .softcap = 2.0}, at::kFloat, 1e-5, 0);
    check_everywhere({.queries = 1, .keys = keys, .window = 5000, .magnitude = 300}, at::kFloat, 1e-3);
  }
  check_everywhere({.queries = 1, .keys = 70, .window = 64, .softcap = 2.0}, at::kBFloat16, 2e-2);
  check_everywhere({.queries = 2, .keys = 70, .window = 64, .first_key = {30, 69}}, at::kHalf, 4e-3);
  check_everywhere({.queries = 2, .keys = 70, .window = 64, .first_key = {70, 0}, .magnitude = 30}, at::kFloat, 1e-4);
  check_everywhere({.queries = 5, .keys = 5, .window = 2, .batch = 1, .bounds = {0, 1, 1, 4, 5}}, at::kFloat, 1e-5);
}

// Calls that the kernel leaves to ATen.
TEST(WindowAttentionKernel, KeysWithMoreHeadsThanQueries) {
  at::manual_seed(8);
  const Tensor k = at::randn({2, 40, 3, 8}), v = at::randn({2, 40, 3, 5});
  for (const int64_t queries : {1, 40}) {
    const Tensor q = at::randn({2, queries, 1, 8});
    const Tensor right = std::get<0>(window_attention_reference(q, k, v, {.window = 20}));
    EXPECT_CLOSE(std::get<0>(window_attention(q, k, v, {.window = 20})), right, 1e-5) << queries;
  }
}

// A prompt read in pieces: every piece needs a little more memory than the last.
TEST(WindowAttentionKernel, CachesThatGrow) {
  const Tensor k = at::randn({1, 18400, 1, 16});
  for (int64_t keys = 16400; keys <= 18400; keys += 100) {
    const Tensor q = at::randn({1, 8, 1, 16}), seen = k.narrow(1, 0, keys);
    WindowAttentionOptions options;
    EXPECT_TRUE(std::get<0>(window_attention(q, seen, seen, options)).isfinite().all().item<bool>());
  }
}

void expect_the_same_on_any_number_of_threads(const Case& c) {
  std::vector<Tensor> inputs = random_inputs(c);
  for (Tensor& x : inputs) x = x.to(at::kFloat);
  testing::expect_any_threads_the_same([&] { return results(window_attention, c, inputs); }, c.text());
}

TEST(WindowAttentionKernel, TheNumberOfThreadsChangesNothing) {
  expect_the_same_on_any_number_of_threads(
      {.queries = 2200, .keys = 2200, .window = 40, .batch = 1, .groups = 1, .repeat = 3});
  expect_the_same_on_any_number_of_threads(
      {.queries = 300, .keys = 300, .window = 40, .batch = 1, .repeat = 3, .extra = 100, .mask_heads = 2});
  expect_the_same_on_any_number_of_threads({.queries = 2, .keys = 2500, .window = 5000, .batch = 1, .repeat = 3});
  // Time is split only without a gradient of row_max; each row has its own first key.
  expect_the_same_on_any_number_of_threads(
      {.queries = 1500, .keys = 1500, .window = 40, .groups = 1, .first_key = {0, 700}, .outer_grads = false});
}

}  // namespace
}  // namespace cortado::window_kernel_test
