#include "cortado/primitives/gated_scan/op.h"
#include "cortado/testing/delta_scan_cases.h"
#include "cortado/testing/errors.h"

namespace cortado::delta_scan_test {
namespace {

using namespace delta_cases;
using testing::error_of;
using testing::kNoError;

void check(const Case& c) {
  const Inputs in = random_inputs(c);
  expect_same(results(in, false), results(in, true), 1e-9, c.text());
}

TEST(DeltaScan, EqualsItsDefinitionAtEveryLength) {
  for (const int64_t tokens : {0, 1, 2, 15, 16, 17, 63, 64, 65, 100, 257}) {
    for (const auto& gate : kGates) check({.gate = gate, .tokens = tokens, .initial = tokens % 3 != 0});
  }
  for (const std::string gate : {"none", "channel"}) {
    check({.gate = gate,
           .tokens = 1000,
           .batch = 1,
           .q_heads = 1,
           .k_heads = 1,
           .v_heads = 1,
           .beta_heads = 1,
           .g_heads = 1});
  }
}

TEST(DeltaScan, BroadcastsHeads) {
  struct Heads {
    int64_t q, k, v, beta, g;
  };
  for (const Heads& h :
       {Heads{1, 1, 6, 6, 6}, {2, 2, 6, 3, 3}, {6, 2, 2, 1, 2}, {6, 1, 3, 1, 1}, {3, 6, 1, 1, 2}, {1, 1, 1, 4, 2}}) {
    for (const auto& gate : kGates) {
      for (const int64_t tokens : {1, 20}) {
        Case c{.gate = gate, .tokens = tokens};
        c.q_heads = h.q;
        c.k_heads = h.k;
        c.v_heads = h.v;
        c.beta_heads = h.beta;
        c.g_heads = h.g;
        check(c);
      }
    }
  }
}

TEST(DeltaScan, OddSizes) {
  for (const auto& [keys, values] : {std::pair{1, 1}, {1, 7}, {13, 1}, {33, 17}}) {
    for (const auto& gate : kGates) check({.gate = gate, .tokens = 70, .keys = keys, .values = values});
  }
}

TEST(DeltaScan, PackedSequences) {
  const std::vector<std::vector<int64_t>> all{
      {0, 0, 1, 1, 6, 70, 71, 76, 76}, {0, 76}, {0, 0, 76}, {0, 38, 76}, {0, 75, 76}};
  for (const auto& bounds : all) {
    for (const auto& gate : kGates) {
      check({.gate = gate, .tokens = 76, .initial = bounds.size() % 2 == 0, .batch = 1, .bounds = bounds});
    }
  }
  check({.tokens = 0, .batch = 1, .bounds = {0}});
  check({.tokens = 1, .batch = 1, .bounds = {0, 0, 1, 1}});
  check({.tokens = 0, .batch = 1, .bounds = {0, 0, 0}});
}

TEST(DeltaScan, ContinuesFromItsState) {
  for (const auto& gate : kGates) {
    const Inputs in = random_inputs({.gate = gate, .tokens = 100});
    const auto run = [&](int64_t first, int64_t length, const Tensor& state) {
      const auto part = [&](size_t i) { return in.tensors[i].narrow(1, first, length); };
      OptionalTensor g;
      if (in.tensors[4].defined()) g = in.tensors[4].dim() >= 3 ? part(4) : in.tensors[4];
      return delta_scan(part(0), part(1), part(2), part(3), g, {}, state);
    };
    const auto [whole, last] = run(0, 100, in.tensors[5]);
    for (const int64_t cut : {1, 37, 64, 99}) {
      const auto [a, middle] = run(0, cut, in.tensors[5]);
      const auto [b, end] = run(cut, 100 - cut, middle);
      expect_same({at::cat({a, b}, 1), end}, {whole, last}, 1e-12, gate);
    }
    Tensor state = in.tensors[5], stepped = at::empty_like(whole);
    for (int64_t t = 0; t < 100; ++t) {
      const auto [o, next] = run(t, 1, state);
      stepped.narrow(1, t, 1).copy_(o);
      state = next;
    }
    expect_same({stepped, state}, {whole, last}, 1e-12, gate + " by steps");
  }
}

TEST(DeltaScan, ShortTypesStayNear) {
  for (const auto& gate : kGates) {
    const Case c{.gate = gate, .tokens = 200, .keys = 16, .values = 8};
    for (const auto& [type, tolerance] : {std::pair{at::kFloat, 1e-5}, {at::kBFloat16, 3e-2}}) {
      const Inputs in = converted(random_inputs(c), type);
      const auto got = results(in, false);
      EXPECT_EQ(got[0].scalar_type(), type);
      EXPECT_EQ(got[1].scalar_type(), at::kFloat);
      for (size_t i = 2; i < got.size(); ++i) EXPECT_TRUE(!got[i].defined() || got[i].scalar_type() == type);
      // The weights of the outputs are rounded to the outputs' types, in both: the judge takes the rounded ones too.
      expect_same(got, results(converted(in, at::kDouble), true), tolerance, c.text());
    }
  }
}

TEST(DeltaScan, EachInputMayHaveItsOwnType) {
  Inputs in = random_inputs({.tokens = 70});
  const at::ScalarType types[] = {at::kBFloat16, at::kFloat, at::kHalf, at::kFloat, at::kBFloat16, at::kFloat};
  for (size_t i = 0; i < 6; ++i) in.tensors[i] = in.tensors[i].to(types[i]);
  const auto got = results(in, false);
  EXPECT_EQ(got[0].scalar_type(), at::kHalf);
  EXPECT_EQ(got[1].scalar_type(), at::kFloat);
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(got[i + 2].scalar_type(), types[i]);
  expect_same(got, results(converted(in, at::kDouble), true), 1e-2, "mixed");
  in.tensors[3] = in.tensors[3].to(at::kDouble);
  EXPECT_EQ(results(in, false)[1].scalar_type(), at::kDouble);
}

// Gates of 0, -1e4 and -inf at random places, and each of these everywhere.
TEST(DeltaScan, ExtremeGates) {
  const std::vector<std::vector<double>> menus{
      {0}, {-1e4}, {-kInfinity}, {0, -kInfinity}, {0, -1e-3, -1, -1e4, -kInfinity}};
  for (const auto& menu : menus) {
    for (const std::string gate : {"head", "channel", "constant", "constant channel"}) {
      const Case c{.gate = gate, .tokens = 150};
      Inputs in = random_inputs(c);
      Tensor& g = in.tensors[4];
      g = at::tensor(menu, at::kDouble).index({at::randint(static_cast<int64_t>(menu.size()), g.sizes())});
      const auto right = results(in, true);
      expect_same(results(in, false), right, 1e-9, c.text());
      const auto got = results(converted(in, at::kFloat), false);
      expect_same(got, right, 5e-5, c.text());
      EXPECT_TRUE(got[6].index({g == -kInfinity}).eq(0).all().item<bool>()) << c.text();
    }
  }
}

// beta 0 writes nothing (and its gradient does not come from a division by it), 1 replaces, 2 reflects; keys all equal.
TEST(DeltaScan, ExtremeBetasAndKeys) {
  for (const std::string gate : {"none", "head", "channel"}) {
    for (const double beta : {0.0, 1.0, 2.0}) {
      Inputs in = random_inputs({.gate = gate, .tokens = 100, .batch = 1, .decay = 1e-2});
      in.tensors[3].fill_(beta);
      expect_same(results(in, false), results(in, true), 1e-9, concat("beta ", beta));
      in.tensors[1].copy_(in.tensors[1].narrow(1, 0, 1).expand_as(in.tensors[1]).clone());
      const auto right = results(in, true);
      expect_same(results(in, false), right, 1e-9, concat("equal keys, beta ", beta));
      expect_same(results(converted(in, at::kFloat), false), right, 2e-4, concat("float32, beta ", beta));
    }
  }
}

// With an orthonormal set of keys there is nothing to correct: it is a gated scan of beta v. And beta = 1 stores
// exactly: whatever was at a key, reading it gives the last value written.
TEST(DeltaScan, StoresAndReplaces) {
  at::manual_seed(3);
  const Tensor k = at::eye(8, at::kDouble).view({1, 8, 1, 8}), v = at::randn({1, 8, 1, 3}, at::kDouble);
  const Tensor q = at::randn({1, 8, 1, 8}, at::kDouble), beta = at::rand({1, 8, 1}, at::kDouble);
  EXPECT_CLOSE(std::get<0>(delta_scan(q, k, v, beta)), std::get<0>(gated_scan(q, k, v * beta.unsqueeze(-1))), 1e-12);
  const Tensor keys = at::randn({1, 90, 1, 4}, at::kDouble);
  const Tensor unit = keys / at::linalg_vector_norm(keys, 2, at::IntArrayRef{-1}, true);
  const Tensor values = at::randn({1, 90, 1, 3}, at::kDouble), one = at::ones({1, 90, 1}, at::kDouble);
  EXPECT_CLOSE(std::get<0>(delta_scan(unit, unit, values, one, {}, 1.0)), values, 1e-11);
}

// Long sequences lose no accuracy: float32 against float64.
TEST(DeltaScan, LongSequencesKeepTheirDigits) {
  for (const auto& [decay, tolerance] : {std::pair{10.0, 5e-6}, {1e-1, 2e-5}, {1e-4, 5e-5}}) {
    for (const std::string gate : {"head", "channel"}) {
      const Case c{.gate = gate, .tokens = 4096, .batch = 1, .keys = 8, .values = 8, .decay = decay};
      const Inputs in = converted(random_inputs(c), at::kFloat);
      expect_same(results(in, false), results(converted(in, at::kDouble), false), tolerance, c.text());
    }
  }
}

TEST(DeltaScan, SaysWhatDoesNotFit) {
  const Tensor q = at::zeros({2, 16, 4, 8}), v = at::zeros({2, 16, 4, 5}), beta = at::zeros({2, 16, 4});
  EXPECT_EQ(error_of([&] { delta_scan(q, q, at::zeros({2, 15, 4, 5}), beta); }),
            "[delta_scan] expected v of shape [2, 16, *, *], got [2, 15, 4, 5]");
  EXPECT_EQ(error_of([&] { delta_scan(q, q, v, at::zeros({2, 16, 4, 1})); }),
            "[delta_scan] expected beta of shape [2, 16, *], got [2, 16, 4, 1]");
  EXPECT_EQ(error_of([&] { delta_scan(q, q, v, beta, at::zeros({2, 16, 4, 7})); }),
            "[delta_scan] expected g of shape [2, 16, *, 8], got [2, 16, 4, 7]");
  EXPECT_EQ(error_of([&] { delta_scan(q, q, v, beta, {}, {}, at::zeros({2, 4, 5, 8})); }),
            "[delta_scan] expected initial_state of shape [2, 4, 8, 5], got [2, 4, 5, 8]");
  EXPECT_EQ(error_of([&] { delta_scan(q, q, v, beta, {}, {}, {}, at::tensor({0, 16})); }),
            "[delta_scan] cu_seqlens needs a batch of 1, got 2");
  EXPECT_EQ(error_of([&] { delta_scan(q, q, v, beta.to(at::kLong)); }),
            "[delta_scan] beta must be a floating-point tensor, got Long");
  EXPECT_NE(error_of([&] { delta_scan(q, at::zeros({2, 16, 3, 8}), v, beta); }), kNoError);
  EXPECT_NE(error_of([&] { delta_scan(q, q, v, at::zeros({2, 16, 3})); }), kNoError);
}

TEST(DeltaScan, DifferentiatingTwiceIsAnError) {
  const Tensor q = at::randn({1, 8, 1, 4}).requires_grad_();
  const auto [o, state] = delta_scan(q, q, q, at::ones({1, 8, 1}));
  const auto grads = torch::autograd::grad({o.sum()}, {q}, {}, true, true);
  const std::string said = error_of([&] { torch::autograd::grad({grads[0].pow(2).sum()}, {q}); });
  EXPECT_TRUE(said.starts_with("[cortado::delta_scan_backward] differentiating twice is not supported")) << said;
}

}  // namespace
}  // namespace cortado::delta_scan_test
