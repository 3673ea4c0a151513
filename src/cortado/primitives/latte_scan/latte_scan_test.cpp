#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "cortado/primitives/common.h"
#include "cortado/primitives/latte_scan/op.h"
#include "cortado/testing/compare.h"
#include "cortado/testing/errors.h"
#include "cortado/testing/kernels.h"

namespace cortado::latte_scan_test {
namespace {

struct Case {
  int64_t tokens = 40, latents = 5, values = 3;
  bool softmax = true, initial = true;
  int64_t batch = 2, q_heads = 2, k_heads = 2, v_heads = 2;
  double size = 2;                   // of the logits
  std::vector<int64_t> bounds = {};  // packed when not empty

  std::string text() const {
    return concat("T=", tokens, " L=", latents, " V=", values, softmax ? " softmax" : "", initial ? " initial" : "",
                  " heads ", q_heads, k_heads, v_heads, " size ", size, bounds.empty() ? "" : " packed");
  }
};

struct Inputs {
  std::vector<Tensor> leaves;  // query, key logits, v, and the states' sums
  OptionalTensor maximum, bounds;

  LatteState start() const {
    if (leaves.size() == 3) return {};
    return {leaves[3], leaves[4], maximum};
  }
};

// Key logits with a trend, so that new maxima occur throughout, and some of -inf, also at a sequence's start.
Inputs make_inputs(const Case& c) {
  at::manual_seed(3);
  const auto normal = [](std::vector<int64_t> sizes) { return at::randn(sizes, at::kDouble); };
  const int64_t rows = c.bounds.empty() ? c.batch : static_cast<int64_t>(c.bounds.size()) - 1;
  const int64_t heads = std::max(c.k_heads, c.v_heads);
  const Tensor trend = at::linspace(0, c.size, c.tokens, at::kDouble).view({1, -1, 1, 1});
  Tensor theta = normal({c.batch, c.tokens, c.k_heads, c.latents}) * c.size + trend;
  theta = theta.masked_fill(at::rand_like(theta) < 0.05, -kInfinity);
  if (c.tokens > 20) theta.narrow(1, 0, 9).masked_fill_(at::rand({c.latents}) < 0.4, -kInfinity);
  Inputs in;
  in.leaves = {normal({c.batch, c.tokens, c.q_heads, c.latents}), theta,
               normal({c.batch, c.tokens, c.v_heads, c.values})};
  if (c.initial) {
    in.maximum = normal({rows, heads, c.latents});
    in.leaves.push_back(normal({rows, heads, c.latents, c.values}));
    in.leaves.push_back(at::rand({rows, heads, c.latents}, at::kDouble) + 1);
  }
  if (!c.bounds.empty()) in.bounds = at::tensor(c.bounds, at::kInt);
  return in;
}

Inputs as(Inputs in, at::ScalarType type, int64_t layout = -1) {
  for (size_t i = 0; i < in.leaves.size(); ++i) {
    Tensor x = in.leaves[i].detach().to(i < 3 || type == at::kDouble ? type : at::kFloat).clone();
    if (layout >= 0 && i < 3) x = testing::awkward(x, layout);
    in.leaves[i] = x.detach().requires_grad_();
  }
  if (in.maximum) in.maximum = in.maximum->to(type == at::kDouble ? type : at::kFloat);
  return in;
}

const char* const kNames[] = {"o",    "state",  "normalizer", "maximum",    "dquery",
                              "dkey", "dvalue", "dstate",     "dnormalizer"};

// Outputs, then the gradients of the leaves by random weights on all outputs but the maximum.
template <typename Scan>
std::vector<Tensor> run(Scan scan, const Case& c, const Inputs& in) {
  const LatteResult got = scan(in.leaves[0], in.leaves[1], in.leaves[2], c.softmax, in.start(), in.bounds);
  std::vector<Tensor> all{got.o, got.state, got.normalizer, got.maximum};
  at::manual_seed(9);
  std::vector<Tensor> outputs(all.begin(), all.begin() + 3), weights;
  for (const Tensor& x : outputs) weights.push_back(at::randn(x.sizes(), at::kDouble));
  for (const Tensor& x : testing::gradients(outputs, weights, in.leaves)) all.push_back(x);
  return all;
}

void expect_equal(const std::vector<Tensor>& got, const std::vector<Tensor>& wanted, double tolerance) {
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t i = 0; i < 4; ++i) EXPECT_CLOSE(got[i], wanted[i], tolerance) << kNames[i];
  const auto gradients = [](const std::vector<Tensor>& all) { return std::vector<Tensor>(all.begin() + 4, all.end()); };
  testing::expect_gradients_close(gradients(got), gradients(wanted), tolerance, {kNames + 4, kNames + 9});
}

void check_everywhere(const Case& c, at::ScalarType type, double tolerance, int64_t layout = -1) {
  const testing::AnyIsa restore;
  const testing::Poisoned poisoned;
  const Inputs in = as(make_inputs(c), type);
  const auto wanted = run(latte_scan_reference, c, as(in, at::kDouble));
  for (const auto& isa : available_isas()) {
    SCOPED_TRACE(concat(isa, " ", c.text()));
    select_isa(isa);
    expect_equal(run(latte_scan, c, as(in, type, layout)), wanted, tolerance);
  }
}

TEST(LatteScan, EqualsItsDefinition) {
  for (const int64_t tokens : {0, 1, 2, 17, 100}) {
    for (const bool initial : {false, true}) {
      const Case c{.tokens = tokens, .softmax = tokens != 2, .initial = initial};
      SCOPED_TRACE(c.text());
      const Inputs in = as(make_inputs(c), at::kDouble);
      expect_equal(run(latte_scan, c, in), run(latte_scan_reference, c, as(in, at::kDouble)), 1e-11);
    }
  }
}

TEST(LatteScanKernel, EverySizeOnEveryInstructionSet) {
  const std::vector<int64_t> sizes{1, 7, 8, 16, 17, 31, 64, 65, 128};
  int64_t number = 0;
  for (const int64_t latents : sizes) {
    for (const int64_t values : sizes) {
      const Case c{.tokens = number % 6 == 0 ? 1 : 1 + number * 7 % 60,
                   .latents = latents,
                   .values = values,
                   .softmax = number % 5 != 1,
                   .initial = number % 4 != 3};
      check_everywhere(c, at::kFloat, 1e-5, (number + 1) % testing::kAwkward);
      ++number;
    }
  }
}

TEST(LatteScanKernel, HeadsAndPackedSequences) {
  struct Heads {
    int64_t q, k, v;
  };
  for (const Heads& h : {Heads{1, 1, 6}, {2, 6, 2}, {6, 2, 2}, {6, 1, 3}, {3, 1, 1}}) {
    for (const int64_t tokens : {1, 76}) {
      Case c{.tokens = tokens, .latents = 9, .values = 20, .softmax = h.q != 2};
      c.q_heads = h.q;
      c.k_heads = h.k;
      c.v_heads = h.v;
      if (tokens > 1) {
        c.batch = 1;
        c.bounds = {0, 0, 1, 1, 6, 70, 71, 76, 76};
      }
      check_everywhere(c, at::kFloat, 1e-5);
    }
  }
}

// Maxima that rise by far more than a tile allows; small and huge logits.
TEST(LatteScanKernel, ExtremeLogits) {
  for (const double size : {1e-3, 30.0, 1e3, 1e5}) {
    for (const int64_t tokens : {1, 16, 50}) {
      check_everywhere({.tokens = tokens, .latents = 20, .values = 17, .size = size}, at::kFloat, 1e-5);
    }
  }
}

// Several of the backward's segments, with a ragged last tile; maxima that halve tiles in all of them.
TEST(LatteScanKernel, LongSequences) {
  for (const double size : {2.0, 60.0}) {
    for (const bool initial : {false, true}) {
      check_everywhere({.tokens = 397, .latents = 20, .values = 33, .initial = initial, .size = size}, at::kFloat,
                       1e-5);
    }
  }
  Case packed{.tokens = 600, .latents = 7, .values = 16, .batch = 1};
  packed.bounds = {0, 129, 256, 256, 600};
  check_everywhere(packed, at::kFloat, 1e-5);
}

// Outputs without a gradient count as having zero gradients.
TEST(LatteScanKernel, GradientsOfSomeOutputs) {
  const Case c{.tokens = 50, .latents = 9, .values = 20};
  const Inputs in = as(make_inputs(c), at::kFloat), exact = as(in, at::kDouble);
  const auto parts = [&](auto scan, const Inputs& from, size_t i) {
    const LatteResult got = scan(from.leaves[0], from.leaves[1], from.leaves[2], c.softmax, from.start(), from.bounds);
    const Tensor output = std::vector<Tensor>{got.o, got.state, got.normalizer}[i];
    const Tensor weight = at::linspace(-1, 1, output.numel(), at::kDouble).view(output.sizes());
    return testing::gradients({output}, {weight}, from.leaves);
  };
  for (const size_t i : {0, 1, 2}) {
    testing::expect_gradients_close(parts(latte_scan, in, i), parts(latte_scan_reference, exact, i), 1e-5,
                                    {kNames + 4, kNames + 9});
  }
}

TEST(LatteScanKernel, SixteenBitTypes) {
  const Case c{.tokens = 70, .latents = 16, .values = 20};
  check_everywhere(c, at::kBFloat16, 2e-2, 0);
  check_everywhere(c, at::kHalf, 3e-3);
}

// The gradient of a tensor that sixteen heads share is the sum over the heads, rounded once.
TEST(LatteScanKernel, SharedHeadsAreSummedInFloat32) {
  Case c{.tokens = 40, .latents = 16, .values = 16, .initial = false};
  c.q_heads = 16;
  c.k_heads = c.v_heads = 1;
  const Inputs few = as(make_inputs(c), at::kBFloat16), many = as(few, at::kFloat);
  const auto of = [&](const Inputs& in) {
    const Tensor o = latte_scan(in.leaves[0], in.leaves[1], in.leaves[2], true).o;
    at::manual_seed(5);
    return testing::gradients({o}, {at::randn(o.sizes()).to(at::kBFloat16)}, in.leaves);
  };
  const auto rounded = of(few), exact = of(many);
  for (size_t i = 0; i < rounded.size(); ++i) {
    EXPECT_TRUE(at::equal(rounded[i], exact[i].to(at::kBFloat16))) << kNames[4 + i];
  }
}

TEST(LatteScanKernel, ContinuesFromItsStates) {
  const Case c{.tokens = 100, .latents = 30, .values = 40, .initial = false};
  const Inputs in = as(make_inputs(c), at::kFloat);
  const auto part = [&](int64_t first, int64_t length, const LatteState& start) {
    const auto cut = [&](size_t i) { return in.leaves[i].detach().narrow(1, first, length); };
    return latte_scan(cut(0), cut(1), cut(2), true, start);
  };
  const LatteResult whole = part(0, 100, {});
  for (const int64_t at : {1, 37, 64, 99}) {
    const LatteResult a = part(0, at, {}), b = part(at, 100 - at, {a.state, a.normalizer, a.maximum});
    EXPECT_CLOSE(at::cat({a.o, b.o}, 1), whole.o, 1e-5) << at;
    EXPECT_CLOSE(b.state, whole.state, 1e-5) << at;
    EXPECT_TRUE(at::equal(b.maximum, whole.maximum)) << at;
  }
}

TEST(LatteScanKernel, TheNumberOfThreadsChangesNothing) {
  // Eight threads share the time of one stream and of two; four streams have a thread each.
  for (const int64_t rows : {1, 2, 4}) {
    const Case c{.tokens = 200, .latents = 33, .values = 65, .batch = rows, .q_heads = 1, .k_heads = 1, .v_heads = 1};
    const Inputs in = as(make_inputs(c), at::kFloat);
    testing::expect_any_threads_the_same([&] { return run(latte_scan, c, in); }, c.text());
  }
}

TEST(LatteScan, SaysWhatDoesNotFit) {
  const Tensor q = at::zeros({2, 8, 4, 6}), v = at::zeros({2, 8, 4, 5});
  EXPECT_EQ(testing::error_of([&] { latte_scan(v, q, v); }),
            "[_latte_scan] expected query of shape [2, 8, *, 6], got [2, 8, 4, 5]");
  EXPECT_EQ(testing::error_of([&] { latte_scan(q, q, v, true, {at::zeros({2, 4, 5, 6}), {}, {}}); }),
            "[_latte_scan] expected state of shape [2, 4, 6, 5], got [2, 4, 5, 6]");
}

}  // namespace
}  // namespace cortado::latte_scan_test
