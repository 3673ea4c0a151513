// The operator against its definition: the chunked form in float64, and the kernel on every instruction set.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "cortado/primitives/common.h"
#include "cortado/primitives/delta_scan/op.h"
#include "cortado/primitives/dplr_scan/op.h"
#include "cortado/testing/compare.h"
#include "cortado/testing/errors.h"
#include "cortado/testing/kernels.h"

namespace cortado::dplr_scan_test {
namespace {

const std::vector<std::string> kResults = {"o", "final_state", "dq", "dk", "dv", "da", "db", "dg", "dinitial"};

struct Case {
  int64_t tokens = 40, keys = 5, values = 3, batch = 2;
  std::vector<int64_t> heads = {2, 2, 2, 2, 2, 2};  // of q, k, v, a, b, g
  bool initial = true;
  double decay = 1;                  // factor on the size of the gates
  std::vector<int64_t> bounds = {};  // packed sequences if not empty
};

// q, k, v, a, b, g and the initial state; that one may be undefined.
struct Inputs {
  Tensors tensors;
  OptionalTensor bounds;
};

Inputs inputs_of(const Case& c) {
  at::manual_seed(7);
  const auto normal = [&](size_t which, int64_t width) {
    return at::randn({c.batch, c.tokens, c.heads[which], width}, at::kDouble);
  };
  const Tensor raw = normal(3, c.keys), a = raw / raw.norm(2, -1, true);
  const int64_t rows = c.bounds.empty() ? c.batch : static_cast<int64_t>(c.bounds.size()) - 1;
  const int64_t state_heads = *std::max_element(c.heads.begin() + 1, c.heads.end());
  Inputs in;
  in.tensors = {normal(0, c.keys),
                normal(1, c.keys),
                normal(2, c.values),
                a,
                normal(4, c.keys) / std::sqrt(static_cast<double>(c.keys)),
                normal(5, c.keys).abs() * -c.decay,
                c.initial ? at::randn({rows, state_heads, c.keys, c.values}, at::kDouble) : Tensor()};
  if (!c.bounds.empty()) in.bounds = at::tensor(c.bounds, at::kLong);
  return in;
}

Inputs converted(Inputs in, at::ScalarType type) {
  for (Tensor& x : in.tensors) {
    if (x.defined()) x = x.to(type);
  }
  return in;
}

// In the order of kResults.
Tensors results(const Inputs& in, bool reference, int64_t layout = -1) {
  const auto laid = [layout](const Tensor& x) { return layout < 0 ? x : testing::awkward(x, layout); };
  Tensors leaves, wanted;
  for (const Tensor& x : in.tensors) {
    leaves.push_back(x.defined() ? laid(x.detach().clone()).requires_grad_() : x);
    if (x.defined()) wanted.push_back(leaves.back());
  }
  const OptionalTensor start = leaves[6].defined() ? OptionalTensor(leaves[6]) : std::nullopt;
  const auto [o, state] = (reference ? dplr_scan_reference : dplr_scan)(leaves[0], leaves[1], leaves[2], leaves[3],
                                                                        leaves[4], leaves[5], {}, start, in.bounds);
  at::manual_seed(11);
  const Tensors weights = {laid(at::randn(o.sizes(), at::kDouble).to(o.scalar_type())),
                           at::randn(state.sizes(), at::kDouble).to(state.scalar_type())};
  Tensors all = {o.detach(), state.detach()};
  for (const Tensor& x : testing::gradients({o, state}, weights, wanted)) all.push_back(x);
  return all;
}

void expect_same(const Tensors& got, const Tensors& right, double tolerance, const std::string& what) {
  ASSERT_EQ(got.size(), right.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_LT(testing::relative_error(got[i], right[i], 1e-9), tolerance) << kResults[i] << " " << what;
  }
}

// In float64, by the chunked form; in float32 on every instruction set, by the kernel.
void check(const Case& c) {
  const Inputs in = inputs_of(c);
  const std::string what = concat("T ", c.tokens, ", K ", c.keys, ", V ", c.values, ", decay ", c.decay);
  const Tensors right = results(in, true);
  expect_same(results(in, false), right, 1e-9, what);
  const testing::AnyIsa restore;
  const testing::Poisoned poisoned;
  const Inputs narrow = converted(in, at::kFloat);
  int64_t layout = 0;
  for (const auto& isa : available_isas()) {
    select_isa(isa);
    expect_same(results(narrow, false, layout++ % testing::kAwkward), right, 1e-4, isa + " " + what);
  }
}

TEST(DplrScan, EqualsItsDefinitionAtEveryLength) {
  for (const int64_t tokens : {1, 2, 15, 16, 17, 33, 100}) check({.tokens = tokens, .initial = tokens % 3 != 0});
}

TEST(DplrScan, SizesOfHeads) {
  for (const auto& [keys, values] :
       {std::pair<int64_t, int64_t>{1, 1}, {1, 7}, {13, 1}, {33, 17}, {16, 64}, {8, 129}}) {
    check({.tokens = 20, .keys = keys, .values = values, .batch = 1});
    check({.tokens = 1, .keys = keys, .values = values, .batch = 1});
  }
}

TEST(DplrScan, BroadcastsHeads) {
  for (const auto& heads :
       std::vector<std::vector<int64_t>>{{1, 1, 6, 1, 1, 6}, {6, 2, 1, 2, 1, 2}, {3, 6, 1, 3, 2, 1}}) {
    for (const int64_t tokens : {1, 20}) check({.tokens = tokens, .heads = heads});
  }
}

TEST(DplrScan, PackedSequences) {
  for (const auto& bounds : std::vector<std::vector<int64_t>>{{0, 0, 1, 1, 6, 40, 40}, {0, 40}, {0, 0, 20, 40}}) {
    for (const int64_t values : {3, 64}) {
      check({.values = values, .batch = 1, .initial = bounds.size() % 2 == 0, .bounds = bounds});
    }
  }
}

TEST(DplrScan, ContinuesFromItsState) {
  for (const auto type : {at::kDouble, at::kFloat}) {
    const Tensors in = converted(inputs_of({.tokens = 50, .values = 64}), type).tensors;
    const auto run = [&](int64_t first, int64_t length, const Tensor& state) {
      const auto part = [&](size_t i) { return in[i].narrow(1, first, length); };
      return dplr_scan(part(0), part(1), part(2), part(3), part(4), part(5), {}, state);
    };
    const auto [whole, last] = run(0, 50, in[6]);
    Tensor state = in[6];
    Tensors parts;
    for (int64_t t = 0; t < 50;) {
      const int64_t length = t == 20 ? 17 : 1;
      const auto [o, next] = run(t, length, state);
      parts.push_back(o);
      state = next;
      t += length;
    }
    const double tolerance = type == at::kDouble ? 1e-12 : 1e-5;
    EXPECT_CLOSE(at::cat(parts, 1), whole, tolerance);
    EXPECT_CLOSE(state, last, tolerance);
  }
}

// Gates of 0, -1e4 and -inf at random places, and each of these everywhere.
TEST(DplrScan, ExtremeGates) {
  for (const auto& menu : std::vector<std::vector<double>>{{-1e4}, {-kInfinity}, {0, -1e-3, -1, -1e4, -kInfinity}}) {
    Inputs in = inputs_of({.tokens = 40});
    in.tensors[5] = at::tensor(menu, at::kDouble)
                        .index({at::randint(static_cast<int64_t>(menu.size()), in.tensors[5].sizes(), at::kLong)});
    const Tensors right = results(in, true);
    expect_same(results(in, false), right, 1e-9, "float64");
    expect_same(results(converted(in, at::kFloat), false), right, 1e-4, "float32");
  }
  check({.tokens = 60, .decay = 0});
}

TEST(DplrScan, ShortTypesStayNear) {
  const Inputs in = converted(inputs_of({.tokens = 60, .keys = 16, .values = 8}), at::kBFloat16);
  const Tensors got = results(in, false);
  EXPECT_EQ(got[0].scalar_type(), at::kBFloat16);
  EXPECT_EQ(got[1].scalar_type(), at::kFloat);
  for (size_t i = 2; i < got.size(); ++i) EXPECT_EQ(got[i].scalar_type(), at::kBFloat16) << kResults[i];
  expect_same(got, results(converted(in, at::kDouble), true), 3e-2, "bfloat16");
}

// The delta rule reads S' = diag(e^g) S_{t-1} by k, so a is k ⊙ e^g.
TEST(DplrScan, ContainsTheDeltaRule) {
  const Tensors in = inputs_of({.tokens = 40}).tensors;
  const Tensor &q = in[0], &k = in[3], &v = in[2], &g = in[5], beta = at::rand({2, 40, 2}, at::kDouble);
  const auto [expected, last] = delta_scan(q, k, v, beta, g, {}, in[6]);
  const Tensor write = k * beta.unsqueeze(-1);
  const auto [o, state] = dplr_scan(q, write, v, k * g.exp(), -write, g, {}, in[6]);
  EXPECT_CLOSE(o, expected, 1e-10);
  EXPECT_CLOSE(state, last, 1e-10);
}

TEST(DplrScan, WrongCallsAreRefusedInOneLine) {
  const Tensors in = inputs_of({.tokens = 4}).tensors;
  const auto said = [&](size_t which, const Tensor& x) {
    Tensors other = in;
    other[which] = x;
    return testing::error_of(
        [&] { dplr_scan(other[0], other[1], other[2], other[3], other[4], other[5], {}, other[6]); });
  };
  EXPECT_EQ(said(0, in[0]), testing::kNoError);
  EXPECT_NE(said(5, in[5].select(3, 0)).find("expected g of shape"), std::string::npos);
  EXPECT_NE(said(3, in[3].narrow(1, 0, 3)).find("expected a of shape"), std::string::npos);
  for (const size_t which : {1, 2, 3, 4, 5}) {  // of 3 heads, where the others have 2
    const std::string name(1, "qkvabg"[which]);
    const std::string words = said(which, in[which].narrow(2, 0, 1).expand({-1, -1, 3, -1}));
    EXPECT_NE(words.find("must divide the largest head count, 3"), std::string::npos) << name << ": " << words;
  }
  EXPECT_NE(said(6, in[6].narrow(0, 0, 1)).find("expected initial_state of shape"), std::string::npos);
}

}  // namespace
}  // namespace cortado::dplr_scan_test
