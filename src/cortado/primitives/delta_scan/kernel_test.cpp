// The kernel on every instruction set this machine has, against the definition in float64.
#include <ATen/Parallel.h>

#include "cortado/testing/delta_scan_cases.h"

namespace cortado::delta_scan_kernel_test {
namespace {

using namespace delta_cases;
using testing::AnyIsa;
using testing::Poisoned;

void expect_right(const Inputs& in, const std::string& what, double tolerance, int64_t layout = -1) {
  const AnyIsa restore;
  const Poisoned poisoned;
  const auto right = results(converted(in, at::kDouble), true);
  for (const auto& isa : available_isas()) {
    select_isa(isa);
    expect_same(results(in, false, layout), right, tolerance, isa + " " + what);
  }
}

void check_everywhere(const Case& c, at::ScalarType type, double tolerance, int64_t layout = -1) {
  expect_right(converted(random_inputs(c), type), c.text(), tolerance, layout);
}

TEST(DeltaScanKernel, EverySizeOnEveryInstructionSet) {
  const std::vector<int64_t> sizes{1, 7, 8, 16, 17, 31, 64, 65, 128};
  int64_t number = 0;
  for (const int64_t keys : sizes) {
    for (const int64_t values : sizes) {
      Case c{.gate = kGates[number % 5], .tokens = 1 + number * 7 % 40, .initial = number % 4 != 3};
      c.keys = keys;
      c.values = values;
      c.decay = 0.3;
      // With one key a constant gate's gradient is a sum over all tokens that nearly cancels: 3e-5 in ATen, too.
      check_everywhere(c, at::kFloat, keys == 1 ? 5e-5 : 1e-5, number / 2 % testing::kAwkward);
      ++number;
    }
  }
}

TEST(DeltaScanKernel, EveryOption) {
  for (const auto& gate : kGates) {
    for (const int64_t tokens : {1, 15, 16, 17, 128, 129, 150, 300}) {
      Case c{.gate = gate, .tokens = tokens, .initial = tokens != 17};
      c.keys = 9;
      c.values = 20;
      check_everywhere(c, at::kFloat, 1e-5);
    }
  }
}

TEST(DeltaScanKernel, HeadsAndPackedSequences) {
  struct Heads {
    int64_t q, k, v, beta, g;
  };
  for (const Heads& h :
       {Heads{1, 1, 6, 6, 6}, {2, 2, 6, 3, 3}, {6, 2, 2, 1, 2}, {6, 1, 3, 1, 1}, {3, 6, 1, 1, 2}, {1, 1, 1, 4, 2}}) {
    for (const auto& gate : kGates) {
      for (const int64_t kind : {0, 1, 2}) {
        Case c{.gate = gate, .tokens = kind == 2 ? 1 : 76};
        c.q_heads = h.q;
        c.k_heads = h.k;
        c.v_heads = h.v;
        c.beta_heads = h.beta;
        c.g_heads = h.g;
        if (kind == 0) {
          c.batch = 1;
          c.bounds = {0, 0, 1, 1, 6, 70, 71, 76, 76};
        }
        check_everywhere(c, at::kFloat, 1e-5);
      }
    }
  }
}

// More channels than kStepWidth.
TEST(DeltaScanKernel, StepsOfAnyWidth) {
  for (const auto& [keys, values] : {std::pair<int64_t, int64_t>{1024, 8}, {1025, 8}, {8, 1024}, {8, 1025}}) {
    Case c{.gate = "head", .tokens = 1};
    c.keys = keys;
    c.values = values;
    check_everywhere(c, at::kFloat, 1e-5);
  }
}

TEST(DeltaScanKernel, SixteenBitTypes) {
  for (const auto& gate : kGates) {
    for (const int64_t tokens : {1, 70}) {
      const Case c{.gate = gate, .tokens = tokens, .keys = 16, .values = 20};
      check_everywhere(c, at::kBFloat16, 3e-2, 0);
      check_everywhere(c, at::kHalf, 4e-3);
    }
  }
}

TEST(DeltaScanKernel, ExtremeGates) {
  const std::vector<std::vector<double>> menus{{-1e4}, {-kInfinity}, {0, -kInfinity}, {0, -1e-3, -1, -1e4, -kInfinity}};
  const AnyIsa restore;
  for (const auto& menu : menus) {
    for (const std::string gate : {"head", "channel", "constant channel"}) {
      const Case c{.gate = gate, .tokens = 150};
      Inputs in = random_inputs(c);
      Tensor& g = in.tensors[4];
      g = at::tensor(menu, at::kDouble).index({at::randint(static_cast<int64_t>(menu.size()), g.sizes())});
      const auto right = results(in, true);
      for (const auto& isa : available_isas()) {
        select_isa(isa);
        const auto got = results(converted(in, at::kFloat), false);
        expect_same(got, right, 5e-5, isa + " " + c.text());
        EXPECT_TRUE(got[6].index({g == -kInfinity}).eq(0).all().item<bool>()) << isa << " " << c.text();
      }
    }
  }
}

// beta 0 writes nothing, 1 replaces, 2 reflects; also with keys that are all equal, where the triangular systems have
// their largest elements.
TEST(DeltaScanKernel, ExtremeBetasAndKeys) {
  for (const std::string gate : {"none", "head", "channel"}) {
    for (const double beta : {0.0, 1.0, 2.0}) {
      Inputs in = random_inputs({.gate = gate, .tokens = 100, .batch = 1, .decay = 1e-2});
      in.tensors[3].fill_(beta);
      expect_right(converted(in, at::kFloat), concat(gate, " beta ", beta), 1e-4);
      in.tensors[1].copy_(in.tensors[1].narrow(1, 0, 1).expand_as(in.tensors[1]).clone());
      expect_right(converted(in, at::kFloat), concat(gate, " equal keys, beta ", beta), 2e-4);
    }
  }
}

TEST(DeltaScanKernel, TheNumberOfThreadsChangesNothing) {
  for (const int64_t heads : {1, 3}) {
    for (const auto& gate : kGates) {
      Case c{.gate = gate, .tokens = 150, .batch = 1};
      c.q_heads = c.k_heads = c.v_heads = c.beta_heads = c.g_heads = heads;
      c.keys = 33;
      c.values = 130;
      const Inputs in = converted(random_inputs(c), at::kFloat);
      testing::expect_any_threads_the_same([&] { return results(in, false); }, c.text());
    }
  }
}

}  // namespace
}  // namespace cortado::delta_scan_kernel_test
