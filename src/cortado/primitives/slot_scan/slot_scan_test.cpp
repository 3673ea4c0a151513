#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "cortado/primitives/common.h"
#include "cortado/primitives/gated_scan/op.h"
#include "cortado/primitives/slot_scan/op.h"
#include "cortado/testing/compare.h"
#include "cortado/testing/errors.h"
#include "cortado/testing/kernels.h"

namespace cortado::slot_scan_test {
namespace {

using testing::error_of;
using testing::kNoError;
using testing::relative_error;

struct SlotCase {
  std::string read = "slot";
  int64_t tokens = 40;
  bool initial = true, shared_w = false, shared_decay = false;
  int64_t batch = 2, q_heads = 2, w_heads = 2, x_heads = 2, decay_heads = 2, slots = 5, channels = 3;
  std::vector<int64_t> bounds = {};  // packed if there are any

  int64_t state_heads() const { return std::max({x_heads, shared_w ? 1 : w_heads, shared_decay ? 1 : decay_heads}); }
  std::string text() const {
    return concat(read, " T=", tokens, initial ? " initial" : "", shared_w ? " shared w" : "",
                  shared_decay ? " shared decay" : "", bounds.empty() ? "" : " packed", " heads ", q_heads, w_heads,
                  x_heads, decay_heads, " M=", slots, " X=", channels);
  }
};

struct SlotInputs {
  std::vector<Tensor> tensors;  // q, w, x, decay, initial state (or undefined)
  Tensor bounds;
};

// Decays around ±0.6 with some exact zeros and some above 1.
SlotInputs random_slots(const SlotCase& c) {
  at::manual_seed(5);
  const auto normal = [](std::vector<int64_t> sizes) { return at::randn(sizes, at::kDouble); };
  const auto timed = [&](bool shared, int64_t heads) {
    return shared ? normal({c.tokens, c.slots}) : normal({c.batch, c.tokens, heads, c.slots});
  };
  SlotInputs in;
  in.tensors = {normal({c.batch, c.tokens, c.q_heads, c.read == "slot" ? c.slots : c.channels}),
                timed(c.shared_w, c.w_heads), normal({c.batch, c.tokens, c.x_heads, c.channels}),
                timed(c.shared_decay, c.decay_heads)};
  Tensor& decay = in.tensors[3];
  decay = decay.masked_fill(at::rand_like(decay) < 0.2, 0);
  const int64_t rows = c.bounds.empty() ? c.batch : static_cast<int64_t>(c.bounds.size()) - 1;
  in.tensors.push_back(c.initial ? normal({rows, c.state_heads(), c.slots, c.channels}) : Tensor());
  if (!c.bounds.empty()) in.bounds = at::tensor(c.bounds, at::kInt);
  return in;
}

SlotInputs as_type(SlotInputs in, at::ScalarType type) {
  for (auto& x : in.tensors) {
    if (x.defined()) x = x.to(type);
  }
  return in;
}

// o, final state, then the gradients of every input, by random weights on both outputs. The inputs have an unusual
// layout if `layout` names one (testing/kernels.h).
std::vector<Tensor> slot_results(const SlotCase& c, const SlotInputs& in, bool reference, int64_t layout = -1) {
  std::vector<Tensor> leaves, wanted;
  for (const auto& x : in.tensors) {
    const auto placed = [&] { return layout < 0 ? x.detach().clone() : testing::awkward(x.detach(), layout).detach(); };
    leaves.push_back(x.defined() ? placed().requires_grad_() : x);
    if (x.defined()) wanted.push_back(leaves.back());
  }
  const auto given = [](const Tensor& x) { return x.defined() ? OptionalTensor(x) : std::nullopt; };
  const auto [o, state] = (reference ? slot_scan_reference : slot_scan)(leaves[0], leaves[1], leaves[2], leaves[3],
                                                                        c.read, {}, given(leaves[4]), given(in.bounds));
  at::manual_seed(11);
  const Tensor weight_o = at::randn(o.sizes(), at::kDouble), weight_state = at::randn(state.sizes(), at::kDouble);
  std::vector<Tensor> all{o.detach(), state.detach()};
  for (const auto& x : testing::gradients({o, state}, {weight_o, weight_state}, wanted)) {
    all.push_back(x);
  }
  return all;
}

const char* const kSlotNames[] = {"o", "final_state", "dq", "dw", "dx", "ddecay", "dinitial"};

void expect_all(const std::vector<Tensor>& got, const std::vector<Tensor>& right, double tolerance,
                const std::string& what) {
  ASSERT_EQ(got.size(), right.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].sizes(), right[i].sizes()) << kSlotNames[i] << " " << what;
    EXPECT_LT(relative_error(got[i], right[i]), tolerance) << kSlotNames[i] << " " << what;
  }
}

void check(const SlotCase& c) {
  const SlotInputs in = random_slots(c);
  expect_all(slot_results(c, in, false), slot_results(c, in, true), 1e-9, c.text());
}

TEST(SlotScan, EqualsItsDefinitionAtEveryLength) {
  for (const int64_t tokens : {0, 1, 2, 15, 16, 17, 31, 32, 33, 64, 65, 100}) {
    for (const std::string read : {"slot", "channel"}) {
      const bool odd = tokens % 2;
      check({.read = read, .tokens = tokens, .initial = tokens % 3 != 0});
      check({.read = read, .tokens = tokens, .initial = odd, .shared_w = true, .shared_decay = true});
      check({.read = read, .tokens = tokens, .shared_w = odd, .shared_decay = !odd});
    }
  }
  check({.tokens = 1000, .batch = 1, .q_heads = 1, .w_heads = 1, .x_heads = 1, .decay_heads = 1});
}

TEST(SlotScan, OddSizesAndHeads) {
  for (const auto& [slots, channels] : {std::pair{1, 1}, {1, 7}, {13, 1}, {33, 17}}) {
    for (const std::string read : {"slot", "channel"}) check({.read = read, .slots = slots, .channels = channels});
  }
  struct Heads {
    int64_t q, w, x, decay;
  };
  for (const Heads& h : {Heads{1, 1, 6, 6}, {2, 6, 2, 3}, {6, 2, 2, 1}, {6, 1, 3, 1}, {3, 1, 1, 6}}) {
    for (const std::string read : {"slot", "channel"}) {
      for (const int64_t tokens : {1, 40}) {
        SlotCase c{.read = read, .tokens = tokens};
        c.q_heads = h.q;
        c.w_heads = h.w;
        c.x_heads = h.x;
        c.decay_heads = h.decay;
        check(c);
        c.shared_w = c.shared_decay = true;
        check(c);
      }
    }
  }
}

TEST(SlotScan, PackedSequences) {
  const std::vector<std::vector<int64_t>> all{{0, 0, 1, 1, 6, 70, 71, 76, 76}, {0, 76}, {0, 0, 76}, {0, 38, 76}};
  for (const auto& bounds : all) {
    for (const std::string read : {"slot", "channel"}) {
      for (const bool shared : {false, true}) {
        check({.read = read,
               .tokens = 76,
               .initial = !shared,
               .shared_w = shared,
               .shared_decay = shared,
               .batch = 1,
               .bounds = bounds});
      }
    }
  }
  check({.tokens = 0, .batch = 1, .bounds = {0}});
  check({.tokens = 1, .batch = 1, .bounds = {0, 0, 1, 1}});
  check({.tokens = 0, .batch = 1, .bounds = {0, 0, 0}});
}

// With decays in (0, 1) it is the gated scan of their logs.
TEST(SlotScan, IsTheGatedScanOfTheLogs) {
  at::manual_seed(2);
  const Tensor q = at::randn({2, 90, 2, 5}, at::kDouble), w = at::randn({2, 90, 2, 5}, at::kDouble);
  const Tensor x = at::randn({2, 90, 2, 3}, at::kDouble), g = -at::rand({2, 90, 2, 5}, at::kDouble);
  const Tensor values = at::randn({2, 90, 2, 3}, at::kDouble);
  const auto [a, a_state] = slot_scan(q, w, x, g.exp());
  const auto [b, b_state] = gated_scan(q, w, x, g, "key", 1.0);
  EXPECT_CLOSE(a, b, 1e-12);
  EXPECT_CLOSE(a_state, b_state, 1e-12);
  EXPECT_CLOSE(std::get<0>(slot_scan(values, w, x, g.exp(), "channel", 1.0)),
               std::get<0>(gated_scan(values, w, x, g, "value")), 1e-12);
}

TEST(SlotScan, ContinuesFromItsState) {
  const SlotInputs in = random_slots({.tokens = 100});
  const auto run = [&](int64_t first, int64_t length, const Tensor& state) {
    const auto part = [&](size_t i) { return in.tensors[i].narrow(1, first, length); };
    return slot_scan(part(0), part(1), part(2), part(3), "slot", {}, state);
  };
  const auto [whole, last] = run(0, 100, in.tensors[4]);
  for (const int64_t cut : {1, 32, 37, 99}) {
    const auto [a, middle] = run(0, cut, in.tensors[4]);
    const auto [b, end] = run(cut, 100 - cut, middle);
    EXPECT_CLOSE(at::cat({a, b}, 1), whole, 1e-12);
    EXPECT_CLOSE(end, last, 1e-12);
  }
}

// Decays of 0, ±1, above 1 and far below, in float32 against float64's definition.
TEST(SlotScan, ExtremeDecays) {
  const std::vector<std::vector<double>> menus{{0}, {1}, {-1}, {1.33}, {-1.2}, {0, 1, -1, 1.33, 1e-20, -0.5}};
  for (const auto& menu : menus) {
    for (const std::string read : {"slot", "channel"}) {
      const SlotCase c{.read = read, .tokens = 100};
      SlotInputs in = random_slots(c);
      Tensor& decay = in.tensors[3];
      decay = at::tensor(menu, at::kDouble).index({at::randint(static_cast<int64_t>(menu.size()), decay.sizes())});
      const auto right = slot_results(c, in, true);
      expect_all(slot_results(c, in, false), right, 1e-9, c.text());
      in.tensors[3] = in.tensors[3].to(at::kFloat).to(at::kDouble);  // 1.33 rounded to float32
      expect_all(slot_results(c, as_type(in, at::kFloat), false),
                 slot_results(c, as_type(as_type(in, at::kFloat), at::kDouble), true), 2e-5, c.text());
    }
  }
}

// Decays drawn from a list, rounded to float32.
void choose_decays(SlotInputs& in, const std::vector<double>& menu) {
  Tensor& decay = in.tensors[3];
  const Tensor chosen = at::randint(static_cast<int64_t>(menu.size()), decay.sizes());
  decay = at::tensor(menu, at::kDouble).index({chosen}).to(at::kFloat).to(at::kDouble);
}

const std::vector<double> kDecays{0, -0.33, 0.5, 1, 1.3};

void check_kernel(const SlotCase& c, const std::vector<double>& menu, at::ScalarType type, double tolerance,
                  int64_t layout = -1) {
  const testing::AnyIsa restore;
  const testing::Poisoned poisoned;
  SlotInputs in = random_slots(c);
  choose_decays(in, menu);
  in = as_type(in, type);
  const auto right = slot_results(c, as_type(in, at::kDouble), true);
  for (const auto& isa : available_isas()) {
    select_isa(isa);
    expect_all(slot_results(c, in, false, layout), right, tolerance, concat(isa, " ", c.text()));
  }
}

TEST(SlotScanKernel, EverySizeOnEveryInstructionSet) {
  const std::vector<int64_t> sizes{1, 7, 8, 16, 17, 31, 64, 65, 128};
  int64_t number = 0;
  for (const int64_t slots : sizes) {
    for (const int64_t channels : sizes) {
      SlotCase c{.read = number % 2 ? "slot" : "channel", .tokens = 1 + number * 7 % 40, .slots = slots};
      c.initial = number % 4 != 3;
      c.shared_w = number % 5 == 1;
      c.shared_decay = number % 3 == 1;
      c.channels = channels;
      check_kernel(c, kDecays, at::kFloat, 2e-5, (number + 1) % 4);
      ++number;
    }
  }
}

TEST(SlotScanKernel, HeadsAndPackedSequences) {
  struct Heads {
    int64_t q, w, x, decay;
  };
  for (const Heads& h : {Heads{1, 1, 6, 6}, {2, 6, 2, 3}, {6, 2, 2, 1}, {6, 1, 3, 1}, {3, 1, 1, 6}}) {
    for (const std::string read : {"slot", "channel"}) {
      for (const int64_t tokens : {1, 76}) {
        SlotCase c{.read = read, .tokens = tokens, .shared_w = tokens == 1 && h.w == 1, .shared_decay = h.decay == 1};
        c.q_heads = h.q;
        c.w_heads = h.w;
        c.x_heads = h.x;
        c.decay_heads = h.decay;
        if (tokens > 1) {
          c.batch = 1;
          c.bounds = {0, 0, 1, 1, 6, 70, 71, 76, 76};
        }
        check_kernel(c, kDecays, at::kFloat, 2e-5);
      }
    }
  }
}

// Whole tiles of zeros, of growing factors, and of factors whose products underflow; mainly for the decays' gradients.
TEST(SlotScanKernel, ExtremeDecays) {
  const std::vector<std::vector<double>> menus{
      {0}, {1}, {-1}, {1.33}, {-1.2}, {1e-30}, {1e-40, 1.3}, {0, 30}, {1, 1e-38, 0}, {0, 1, -1, 1.33, 1e-20, -0.5}};
  for (const auto& menu : menus) {
    for (const std::string read : {"slot", "channel"}) {
      for (const int64_t tokens : {16, 100}) check_kernel({.read = read, .tokens = tokens}, menu, at::kFloat, 2e-5);
    }
  }
}

TEST(SlotScanKernel, SixteenBitTypes) {
  for (const std::string read : {"slot", "channel"}) {
    const SlotCase c{.read = read, .tokens = 70, .slots = 20, .channels = 16};
    check_kernel(c, kDecays, at::kBFloat16, 3e-2, 0);
    check_kernel(c, kDecays, at::kHalf, 4e-3);
  }
}

TEST(SlotScanKernel, TheNumberOfThreadsChangesNothing) {
  for (const std::string read : {"slot", "channel"}) {
    SlotCase c{.read = read, .tokens = 100, .batch = 1, .q_heads = 1, .w_heads = 1, .x_heads = 1, .decay_heads = 1};
    c.slots = 65;
    c.channels = 130;
    const SlotInputs in = as_type(random_slots(c), at::kFloat);
    testing::expect_any_threads_the_same([&] { return slot_results(c, in, false); }, read);
  }
}

TEST(SlotScan, EachInputMayHaveItsOwnType) {
  const SlotCase c{.shared_decay = true};
  SlotInputs in = random_slots(c);
  const at::ScalarType types[] = {at::kBFloat16, at::kFloat, at::kHalf, at::kFloat, at::kFloat};
  for (size_t i = 0; i < 5; ++i) in.tensors[i] = in.tensors[i].to(types[i]);
  const auto got = slot_results(c, in, false);
  EXPECT_EQ(got[0].scalar_type(), at::kHalf);
  EXPECT_EQ(got[1].scalar_type(), at::kFloat);
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(got[i + 2].scalar_type(), types[i]);
  expect_all(got, slot_results(c, as_type(in, at::kDouble), true), 1e-2, c.text());
}

TEST(SlotScan, SaysWhatDoesNotFit) {
  const Tensor w = at::zeros({2, 16, 4, 8}), x = at::zeros({2, 16, 4, 5});
  EXPECT_EQ(error_of([&] { slot_scan(w, w, x, at::zeros({16, 7})); }),
            "[slot_scan] expected decay of shape [16, 8], got [16, 7]");
  EXPECT_EQ(error_of([&] { slot_scan(x, w, x, w); }),
            "[slot_scan] expected q of shape [2, 16, *, 8], got [2, 16, 4, 5]");
  EXPECT_EQ(error_of([&] { slot_scan(w, w, x, w, "key"); }),
            "[slot_scan] read must be \"slot\" or \"channel\", got \"key\"");
  EXPECT_EQ(error_of([&] { slot_scan(w, w, x, w, "slot", {}, at::zeros({2, 4, 5, 8})); }),
            "[slot_scan] expected initial_state of shape [2, 4, 8, 5], got [2, 4, 5, 8]");
  EXPECT_NE(error_of([&] { slot_scan(w, w.to(at::kLong), x, w); }), kNoError);
  EXPECT_NE(error_of([&] { slot_scan(w, w, x, at::zeros({2, 16, 3, 8})); }), kNoError);
}

TEST(SlotScan, DifferentiatingTwiceIsAnError) {
  const Tensor q = at::randn({1, 8, 1, 4}).requires_grad_();
  const auto [o, state] = slot_scan(q, q, q, q);
  const auto grads = torch::autograd::grad({o.sum()}, {q}, {}, true, true);
  const std::string said = error_of([&] { torch::autograd::grad({grads[0].pow(2).sum()}, {q}); });
  EXPECT_TRUE(said.starts_with("[cortado::slot_scan_backward] differentiating twice is not supported")) << said;
}

}  // namespace
}  // namespace cortado::slot_scan_test
