#include <gtest/gtest.h>

#include "cortado/primitives/common.h"
#include "cortado/primitives/gated_scan/op.h"
#include "cortado/testing/compare.h"
#include "cortado/testing/errors.h"
#include "cortado/testing/gated_scan_cases.h"

namespace cortado::gated_scan_test {
namespace {

using namespace gated_cases;
using testing::error_of;
using testing::kNoError;
using testing::relative_error;

void check(const Case& c) {
  const Inputs in = random_inputs(c);
  expect_equal(results(c, in, false), results(c, in, true), names(in), 1e-9, c.text());
}

TEST(GatedScan, EqualsItsDefinitionAtEveryLength) {
  for (const int64_t tokens : {0, 1, 2, 15, 16, 17, 63, 64, 65, 100, 257}) {
    for (const auto& gate : kGates) {
      for (const std::string read : {"key", "value"}) {
        const bool odd = tokens % 2;
        check({.gate = gate, .read = read, .tokens = tokens, .reverse = odd, .initial = tokens % 3 != 0});
      }
    }
  }
  check({.tokens = 1000, .batch = 1, .q_heads = 1, .k_heads = 1, .v_heads = 1, .g_heads = 1});
  check({.gate = "head", .tokens = 1000, .batch = 1, .q_heads = 1, .k_heads = 1, .v_heads = 1, .g_heads = 1});
}

TEST(GatedScan, ReadsInReverseAndBeforeWriting) {
  for (const int64_t tokens : {1, 2, 17, 64, 100}) {
    for (const auto& gate : kGates) {
      for (const bool initial : {false, true}) {
        check({.gate = gate, .tokens = tokens, .initial = initial, .bonus = true});
        check({.gate = gate, .read = "value", .tokens = tokens, .reverse = true, .initial = initial});
        check({.gate = gate, .tokens = tokens, .reverse = true, .initial = initial, .bonus = initial});
      }
    }
  }
}

TEST(GatedScan, BroadcastsHeads) {
  struct Heads {
    int64_t q, k, v, g;
  };
  for (const Heads& h : {Heads{1, 1, 6, 6}, {2, 2, 6, 3}, {6, 2, 2, 2}, {6, 1, 3, 1}, {3, 6, 1, 2}, {4, 2, 1, 1}}) {
    for (const auto& gate : kGates) {
      for (const int64_t tokens : {1, 20}) {
        Case c{.gate = gate, .tokens = tokens};
        c.q_heads = h.q;
        c.k_heads = h.k;
        c.v_heads = h.v;
        c.g_heads = h.g;
        check(c);
        c.read = "value";
        check(c);
        c.read = "key";
        c.bonus = true;
        check(c);
      }
    }
  }
}

TEST(GatedScan, OddSizes) {
  for (const auto& [keys, values] : {std::pair{1, 1}, {1, 7}, {13, 1}, {33, 17}}) {
    for (const auto& gate : kGates) {
      check({.gate = gate, .tokens = 70, .keys = keys, .values = values});
      check({.gate = gate, .read = "value", .tokens = 70, .bonus = false, .keys = keys, .values = values});
    }
  }
}

TEST(GatedScan, PackedSequences) {
  const std::vector<std::vector<int64_t>> all{
      {0, 0, 1, 1, 6, 70, 71, 76, 76}, {0, 76}, {0, 0, 76}, {0, 38, 76}, {0, 75, 76}};
  for (const auto& bounds : all) {
    for (const auto& gate : kGates) {
      check({.gate = gate, .tokens = 76, .batch = 1, .bounds = bounds});
      check({.gate = gate,
             .read = "value",
             .tokens = 76,
             .reverse = true,
             .initial = false,
             .batch = 1,
             .bounds = bounds});
      check({.gate = gate, .tokens = 76, .reverse = true, .bonus = true, .batch = 1, .bounds = bounds});
    }
  }
  check({.tokens = 0, .batch = 1, .bounds = {0}});
  check({.tokens = 1, .batch = 1, .bounds = {0, 0, 1, 1}});
  check({.tokens = 0, .batch = 1, .bounds = {0, 0, 0}});
}

TEST(GatedScan, ContinuesFromItsState) {
  for (const auto& gate : kGates) {
    const Case c{.gate = gate, .tokens = 100};
    const Inputs in = random_inputs(c);
    const auto run = [&](int64_t first, int64_t length, const Tensor& state) {
      const auto part = [&](const Tensor& x) { return x.narrow(1, first, length); };
      OptionalTensor g;
      if (in.tensors[3].defined()) g = in.tensors[3].dim() >= 3 ? part(in.tensors[3]) : in.tensors[3];
      return gated_scan(part(in.tensors[0]), part(in.tensors[1]), part(in.tensors[2]), g, "key", {}, {}, state);
    };
    const auto [whole, last] = run(0, 100, in.tensors[5]);
    for (const int64_t cut : {1, 37, 64, 99}) {
      const auto [a, middle] = run(0, cut, in.tensors[5]);
      const auto [b, end] = run(cut, 100 - cut, middle);
      expect_equal({at::cat({a, b}, 1), end}, {whole, last}, {"o", "state"}, 1e-12, gate);
    }
    Tensor state = in.tensors[5], stepped = at::empty_like(whole);
    for (int64_t t = 0; t < 100; ++t) {
      const auto [o, next] = run(t, 1, state);
      stepped.narrow(1, t, 1).copy_(o);
      state = next;
    }
    expect_equal({stepped, state}, {whole, last}, {"o", "state"}, 1e-12, gate + " by steps");
  }
}

TEST(GatedScan, Float32AndBFloat16) {
  for (const auto& gate : kGates) {
    for (const std::string read : {"key", "value"}) {
      const Case c{.gate = gate, .read = read, .tokens = 200, .bonus = read == "key", .keys = 16, .values = 8};
      for (const auto& [type, tolerance] : {std::pair{at::kFloat, 1e-4 / 20}, {at::kBFloat16, 1e-2}}) {
        const Inputs in = converted(random_inputs(c), type);
        const auto got = results(c, in, false);
        EXPECT_EQ(got[0].scalar_type(), type);
        EXPECT_EQ(got[1].scalar_type(), at::kFloat);
        for (size_t i = 2; i < got.size(); ++i) EXPECT_EQ(got[i].scalar_type(), type);
        // The weights of the outputs are rounded to the outputs' types, in both: the judge takes the rounded ones too.
        const auto right = results(c, converted(in, at::kDouble), true);
        if (type == at::kFloat) expect_equal(got, right, names(in), tolerance, c.text());
        expect_equal({got[0], got[1]}, {right[0], right[1]}, {"o", "state"}, tolerance, c.text());
        if (type == at::kBFloat16) expect_equal(got, right, names(in), 3e-2, c.text());
      }
    }
  }
}

TEST(GatedScan, EachInputMayHaveItsOwnType) {
  const Case c{.tokens = 70, .bonus = true};
  Inputs in = random_inputs(c);
  const at::ScalarType types[] = {at::kBFloat16, at::kFloat, at::kHalf, at::kFloat, at::kBFloat16, at::kFloat};
  for (size_t i = 0; i < 6; ++i) in.tensors[i] = in.tensors[i].to(types[i]);
  const auto got = results(c, in, false);
  EXPECT_EQ(got[0].scalar_type(), at::kHalf);
  EXPECT_EQ(got[1].scalar_type(), at::kFloat);
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(got[i + 2].scalar_type(), types[i]);
  expect_equal(got, results(c, converted(in, at::kDouble), true), names(in), 1e-2, c.text());
  in.tensors[3] = in.tensors[3].to(at::kDouble);
  EXPECT_EQ(results(c, in, false)[1].scalar_type(), at::kDouble);
}

// Gates of 0, -1e4 and -inf at random places, and each of these everywhere.
TEST(GatedScan, ExtremeGates) {
  const std::vector<std::vector<double>> menus{
      {0}, {-1e4}, {-kInfinity}, {0, -kInfinity}, {0, -1e-3, -1, -1e4, -kInfinity}};
  for (const auto& menu : menus) {
    for (const std::string gate : {"head", "channel", "constant", "constant channel"}) {
      for (const std::string read : {"key", "value"}) {
        const Case c{.gate = gate, .read = read, .tokens = 150, .bonus = read == "key"};
        Inputs in = random_inputs(c);
        Tensor& g = in.tensors[3];
        g = at::tensor(menu, at::kDouble).index({at::randint(static_cast<int64_t>(menu.size()), g.sizes())});
        const auto right = results(c, in, true);
        expect_equal(results(c, in, false), right, names(in), 1e-9, c.text());
        const auto got = results(c, converted(in, at::kFloat), false);
        // A constant gate's gradient is a sum over all tokens that may all but cancel.
        expect_equal(got, right, names(in), 5e-5, c.text());
        const size_t at_gate = 5;
        EXPECT_TRUE(got[at_gate].index({g == -kInfinity}).eq(0).all().item<bool>()) << c.text();
      }
    }
  }
}

// Long sequences lose no accuracy: float32 against float64, the gates' gradient on the scale of its parts q⊙dq.
TEST(GatedScan, LongSequencesKeepTheirDigits) {
  for (const auto& [decay, tolerance] : {std::pair{10.0, 3e-6}, {1e-4, 2e-5}, {1e-1, 5e-6}}) {
    for (const std::string gate : {"head", "channel", "constant"}) {
      const Case c{.gate = gate, .tokens = 4096, .batch = 1, .keys = 8, .values = 8, .decay = decay};
      const Inputs in = converted(random_inputs(c), at::kFloat);
      const auto got = results(c, in, false), right = results(c, converted(in, at::kDouble), false);
      for (size_t i = 0; i < got.size(); ++i) {
        if (names(in)[i] == "dg") continue;
        EXPECT_LT(relative_error(got[i], right[i]), tolerance) << names(in)[i] << " " << c.text();
      }
      const double parts = (in.tensors[0].to(at::kDouble) * right[2]).abs().max().item<double>();
      const double wrong = (got[5].to(at::kDouble) - right[5]).abs().max().item<double>();
      const double scale = std::max(parts, right[5].abs().max().item<double>());
      EXPECT_LT(wrong / scale, gate == "constant" ? 1e-4 : tolerance) << "dg " << c.text();
    }
  }
}

TEST(GatedScan, SaysWhatDoesNotFit) {
  const Tensor q = at::zeros({2, 16, 4, 8}), v = at::zeros({2, 16, 4, 5});
  EXPECT_EQ(error_of([&] { gated_scan(q, q, at::zeros({2, 15, 4, 5})); }),
            "[gated_scan] expected v of shape [2, 16, *, *], got [2, 15, 4, 5]");
  EXPECT_EQ(error_of([&] { gated_scan(q, q, v, at::zeros({2, 16, 4, 7})); }),
            "[gated_scan] expected g of shape [2, 16, *, 8], got [2, 16, 4, 7]");
  EXPECT_EQ(error_of([&] { gated_scan(q, q, v, {}, "keys"); }),
            "[gated_scan] read must be \"key\" or \"value\", got \"keys\"");
  EXPECT_EQ(error_of([&] { gated_scan(v, q, v, {}, "value", {}, at::zeros({4, 8})); }),
            "[gated_scan] bonus needs read=\"key\"");
  EXPECT_EQ(error_of([&] { gated_scan(q, q, v, {}, "key", {}, {}, at::zeros({2, 4, 5, 8})); }),
            "[gated_scan] expected initial_state of shape [2, 4, 8, 5], got [2, 4, 5, 8]");
  EXPECT_EQ(error_of([&] { gated_scan(q, q, v, {}, "key", {}, {}, {}, at::tensor({0, 16})); }),
            "[gated_scan] cu_seqlens needs a batch of 1, got 2");
  EXPECT_EQ(error_of([&] { gated_scan(q, q.to(at::kLong), v); }),
            "[gated_scan] k must be a floating-point tensor, got Long");
  EXPECT_NE(error_of([&] { gated_scan(at::zeros({2, 16, 3, 8}), q, v); }), kNoError);
  EXPECT_NE(error_of([&] { gated_scan(q, q, v, at::zeros({2, 16, 4, 8, 1})); }), kNoError);
}

TEST(GatedScan, DifferentiatingTwiceIsAnError) {
  const Tensor q = at::randn({1, 8, 1, 4}).requires_grad_();
  const auto [o, state] = gated_scan(q, q, q);
  const auto grads = torch::autograd::grad({o.sum()}, {q}, {}, true, true);
  const std::string said = error_of([&] { torch::autograd::grad({grads[0].pow(2).sum()}, {q}); });
  EXPECT_TRUE(said.starts_with("[cortado::gated_scan_backward] differentiating twice is not supported")) << said;
}

}  // namespace
}  // namespace cortado::gated_scan_test
