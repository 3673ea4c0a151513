// The kernel on every instruction set this machine has, against the definition in float64.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "cortado/base/isa.h"
#include "cortado/testing/gated_scan_cases.h"
#include "cortado/testing/kernels.h"

namespace cortado::gated_scan_kernel_test {
namespace {

using namespace gated_cases;
using testing::AnyIsa;
using testing::awkward;
using testing::Poisoned;

// As results(), but without copying the inputs.
std::vector<Tensor> results_in_place(const Case& c, const Inputs& in) {
  std::vector<Tensor> wanted;
  for (const auto& x : in.tensors) {
    if (x.defined()) wanted.push_back(x.requires_grad_());
  }
  const auto given = [](const Tensor& x) { return x.defined() ? OptionalTensor(x) : std::nullopt; };
  const auto& x = in.tensors;
  const auto [o, state] =
      gated_scan(x[0], x[1], x[2], given(x[3]), c.read, {}, given(x[4]), given(x[5]), given(in.bounds), c.reverse);
  at::manual_seed(11);
  const Tensor weight_o = at::randn(o.sizes(), at::kDouble).to(o.scalar_type());
  const Tensor weight_state = at::randn(state.sizes(), at::kDouble).to(state.scalar_type());
  std::vector<Tensor> all{o.detach(), state.detach()};
  for (const auto& grad : torch::autograd::grad({o, state}, wanted, {awkward(weight_o, 0), weight_state}))
    all.push_back(grad);
  return all;
}

void check_everywhere(const Case& c, at::ScalarType type, double tolerance, int64_t layout = 3) {
  const AnyIsa restore;
  const Poisoned poisoned;
  Inputs in = converted(random_inputs(c), type);
  const auto right = results(c, converted(in, at::kDouble), true);
  for (auto& x : in.tensors) {
    if (layout >= 0) x = awkward(x, layout);
  }
  for (const auto& isa : available_isas()) {
    select_isa(isa);
    Inputs leaves = in;
    for (auto& x : leaves.tensors) {
      if (x.defined()) x = x.detach();
    }
    expect_equal(results_in_place(c, leaves), right, names(in), tolerance, isa + " " + c.text());
  }
}

TEST(GatedScanKernel, EverySizeOnEveryInstructionSet) {
  const std::vector<int64_t> sizes{1, 7, 8, 16, 17, 31, 64, 65, 128};
  int64_t number = 0;
  for (const int64_t keys : sizes) {
    for (const int64_t values : sizes) {
      Case c{.gate = kGates[number % 5], .read = number % 3 == 2 ? "value" : "key", .tokens = 1 + number * 7 % 40};
      c.reverse = number % 2;
      c.initial = number % 4 != 3;
      c.bonus = number % 3 == 1;
      c.keys = keys;
      c.values = values;
      c.decay = 0.3;
      check_everywhere(c, at::kFloat, 1e-5, number / 2 % testing::kAwkward);
      ++number;
    }
  }
}

TEST(GatedScanKernel, EveryOption) {
  for (const auto& gate : kGates) {
    for (const std::string read : {"key", "value", "bonus"}) {
      for (const int64_t tokens : {1, 16, 17, 150, 300}) {
        Case c{.gate = gate, .read = read == "bonus" ? "key" : read, .tokens = tokens, .reverse = tokens % 2 == 0};
        c.bonus = read == "bonus";
        c.initial = tokens != 17;
        c.keys = 9;
        c.values = 20;
        check_everywhere(c, at::kFloat, 1e-5);
      }
    }
  }
}

TEST(GatedScanKernel, HeadsAndPackedSequences) {
  struct Heads {
    int64_t q, k, v, g;
  };
  for (const Heads& h : {Heads{1, 1, 6, 6}, {2, 2, 6, 3}, {6, 2, 2, 2}, {6, 1, 3, 1}, {3, 6, 1, 2}, {4, 2, 1, 1}}) {
    for (const auto& gate : kGates) {
      for (const int64_t kind : {0, 1, 2, 3}) {
        Case c{.gate = gate, .read = kind == 1 ? "value" : "key", .tokens = kind == 3 ? 1 : 76, .reverse = kind == 1};
        c.q_heads = h.q;
        c.k_heads = h.k;
        c.v_heads = h.v;
        c.g_heads = h.g;
        c.bonus = kind == 2;
        if (kind == 0 || kind == 2) {
          c.batch = 1;
          c.bounds = {0, 0, 1, 1, 6, 70, 71, 76, 76};
        }
        check_everywhere(c, at::kFloat, 1e-5);
      }
    }
  }
}

TEST(GatedScanKernel, SixteenBitTypes) {
  for (const auto& gate : kGates) {
    for (const std::string read : {"key", "value"}) {
      const Case c{.gate = gate, .read = read, .tokens = 70, .keys = 16, .values = 20};
      check_everywhere(c, at::kBFloat16, 3e-2, 0);
      check_everywhere(c, at::kHalf, 4e-3);
    }
  }
}

// More channels than kStepWidth.
TEST(GatedScanKernel, StepsOfAnyWidth) {
  for (const std::string read : {"key", "value"}) {
    for (const auto& [keys, values] : {std::pair<int64_t, int64_t>{1024, 8}, {1025, 8}, {8, 1024}, {8, 1025}}) {
      Case c{.gate = "head", .read = read, .tokens = 1};
      c.keys = keys;
      c.values = values;
      check_everywhere(c, at::kFloat, 1e-5);
    }
  }
}

// The gradient of a tensor that sixteen heads share is the sum over the heads, rounded once.
TEST(GatedScanKernel, SharedHeadsAreSummedInFloat32) {
  Case c{.gate = "head", .tokens = 40, .keys = 16, .values = 16};
  c.q_heads = 16;
  c.k_heads = c.v_heads = c.g_heads = 1;
  const Inputs few = converted(random_inputs(c), at::kBFloat16);
  const auto of = [&](at::ScalarType type) {
    std::vector<Tensor> in;
    for (size_t i = 0; i < 4; ++i) in.push_back(few.tensors[i].detach().to(type).requires_grad_());
    const Tensor o = std::get<0>(gated_scan(in[0], in[1], in[2], in[3]));
    at::manual_seed(5);
    return testing::gradients({o}, {at::randn(o.sizes()).to(at::kBFloat16)}, in);
  };
  const auto rounded = of(at::kBFloat16), exact = of(at::kFloat);
  for (size_t i = 0; i < rounded.size(); ++i) {
    EXPECT_TRUE(at::equal(rounded[i], exact[i].to(rounded[i].scalar_type()))) << "input " << i;
  }
}

TEST(GatedScanKernel, ExtremeGates) {
  const AnyIsa restore;
  const std::vector<std::vector<double>> menus{{-1e4}, {-kInfinity}, {0, -kInfinity}, {0, -1e-3, -1, -1e4, -kInfinity}};
  for (const auto& menu : menus) {
    for (const std::string gate : {"head", "channel", "constant channel"}) {
      for (const std::string read : {"key", "value"}) {
        const Case c{.gate = gate, .read = read, .tokens = 150, .bonus = read == "key"};
        Inputs in = random_inputs(c);
        Tensor& g = in.tensors[3];
        g = at::tensor(menu, at::kDouble).index({at::randint(static_cast<int64_t>(menu.size()), g.sizes())});
        const auto right = results(c, in, true);
        for (const auto& isa : available_isas()) {
          select_isa(isa);
          const auto got = results(c, converted(in, at::kFloat), false);
          expect_equal(got, right, names(in), 5e-5, isa + " " + c.text());
          EXPECT_TRUE(got[5].index({g == -kInfinity}).eq(0).all().item<bool>()) << isa << " " << c.text();
        }
      }
    }
  }
}

// One head: its columns are shared out and, of many tokens, its segments; a last one of one token, too.
TEST(GatedScanKernel, TheNumberOfThreadsChangesNothing) {
  for (const int64_t tokens : {100, 257, 600}) {
    for (const std::string read : {"key", "value"}) {
      for (const auto& gate : kGates) {
        Case c{.gate = gate, .read = read, .tokens = tokens, .reverse = tokens == 600, .batch = 1};
        c.q_heads = c.k_heads = c.v_heads = c.g_heads = 1;
        c.keys = 33;
        c.values = 130;
        const Inputs in = converted(random_inputs(c), at::kFloat);
        testing::expect_any_threads_the_same([&] { return results(c, in, false); }, c.text());
      }
    }
  }
}

TEST(GatedScanKernel, UnknownInstructionSetsAreErrors) {
  const AnyIsa restore;
  EXPECT_ANY_THROW(select_isa("avx1024"));
  EXPECT_EQ(available_isas().back(), "aten");
}

}  // namespace
}  // namespace cortado::gated_scan_kernel_test
