// The kernels that go token by token, run block by block on the host (cuda/emulate.h) by the code that launches them on a
// GPU, against the definitions in float64: outputs and every gradient.
#define CORTADO_EMULATE
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "cortado/primitives/common.h"
#include "cortado/primitives/cuda/emulated_machine.h"
#include "cortado/primitives/delta_scan/op.h"
#include "cortado/primitives/gated_scan/kernel_tokens.cu"
#include "cortado/primitives/gated_scan/op.h"
#include "cortado/primitives/gated_scan/tokens_on_gpu.h"
#include "cortado/primitives/slot_scan/op.h"
#include "cortado/testing/gpu_kernels.h"
#include "cortado/testing/kernels.h"

namespace cortado::tokens_gpu_test {
namespace {

using testing::alone, testing::first_copy, testing::to_first_copy;
using namespace gated;

enum class Decays { kNone, kHeads, kChannels, kFactors };

struct Case {
  int64_t keys = 64, values = 40, batch = 1, tokens = 70, heads = 2, state_heads = 2;
  Decays decays = Decays::kChannels;
  bool delta = false, bonus = false, reverse = false, cuts = false, read_values = false;
  std::vector<int64_t> bounds = {};
  int64_t parts = 1;  // parts of time
  double slow = 1;    // factor on the gates
  gpu::Order order = {};
};

template <int kKeys, Gates kGates>
void add_walks(cuda::EmulatedMachine::Kernels& to) {
  const std::string variant = " KEYS=" + std::to_string(kKeys) + " GATES=" + std::to_string(int(kGates));
  const auto add = [&]<bool kReverse, Rule kRule>(const char* name) {
    to[name + variant] =
        cuda::kernel_of<GpuTokens>([](const auto& in) { Tokens<kKeys, kGates, kReverse, kRule>(in).run(); });
  };
  add.template operator()<false, Rule::kRead>("tokens");
  add.template operator()<true, Rule::kRead>("tokens_reverse");
  add.template operator()<false, Rule::kStates>("tokens_states");
  add.template operator()<true, Rule::kStates>("tokens_states_reverse");
  if constexpr (kGates != Gates::kHead) {
    add.template operator()<false, Rule::kBonus>("tokens_bonus");
    add.template operator()<true, Rule::kBonus>("tokens_bonus_reverse");
  }
  if constexpr (kGates != Gates::kValues) {
    add.template operator()<false, Rule::kDelta>("tokens_delta");
    add.template operator()<true, Rule::kDeltaGradient>("tokens_delta_gradient");
  }
  to["token_join" + variant] = cuda::kernel_of<GpuJoin>(&join_parts);
  to["token_gates" + variant] = cuda::kernel_of<GpuTokenGates>(&add_up_token_gates);
}
template <int kKeys>
void add_widths(cuda::EmulatedMachine::Kernels& to) {
  add_walks<kKeys, Gates::kHead>(to);
  add_walks<kKeys, Gates::kKeys>(to);
  add_walks<kKeys, Gates::kValues>(to);
}

void expect_near(const Tensor& found, const Tensor& right, const char* what, double most = 3e-6) {
  testing::expect_near(found, right, what, most);
}

// The operators' inputs, in float32 and, for the definition's gradients, in float64.
struct Inputs {
  std::vector<Tensor> narrow, leaves;

  Tensor& add(const Tensor& x) {
    narrow.push_back(alone(x.to(at::kFloat)));
    leaves.push_back(narrow.back().to(at::kDouble).requires_grad_());
    return narrow.back();
  }
};

Tensor some_decays(const Case& c) {
  std::vector<int64_t> sizes{c.batch, c.tokens, c.state_heads};
  if (c.decays != Decays::kHeads) sizes.push_back(c.keys);
  if (c.decays == Decays::kFactors) return at::rand({c.tokens, c.keys}) * 1.6 - 0.6;
  Tensor g = at::rand(sizes).log() * c.slow;
  if (c.cuts) g.masked_fill_(at::rand_like(g).lt(0.05), -INFINITY);
  return g;
}

TensorTuple<2> defined(const Case& c, const std::vector<Tensor>& in, const OptionalTensor& g, double scale) {
  const OptionalTensor bounds = c.bounds.empty() ? OptionalTensor() : OptionalTensor(at::tensor(c.bounds, at::kLong));
  if (c.delta) return delta_scan_reference(in[0], in[1], in[2], in[4], g, scale, in[3], bounds);
  if (c.decays == Decays::kFactors) {
    return slot_scan_reference(in[0], in[1], in[2], *g, c.read_values ? "channel" : "slot", scale, in[3], bounds);
  }
  return gated_scan_reference(in[0], in[1], in[2], g, c.read_values ? "value" : "key", scale,
                              c.bonus ? OptionalTensor(in[4]) : std::nullopt, in[3], bounds, c.reverse);
}

void check(const Case& c) {
  at::manual_seed(3);
  const auto rows = c.bounds.empty() ? c.batch : int64_t(c.bounds.size()) - 1;
  const auto numbers = [&](int64_t heads, int64_t width) { return at::randn({c.batch, c.tokens, heads, width}); };
  const int64_t asked = c.read_values ? c.values : c.keys, told = c.read_values ? c.keys : c.values;
  const bool factors = c.decays == Decays::kFactors, gates = c.decays != Decays::kNone;
  const Tensor keys = numbers(c.state_heads, c.keys);
  Inputs inputs;
  inputs.add(numbers(c.heads, asked));
  inputs.add(c.delta ? keys / keys.norm(2, -1, true) : keys);
  inputs.add(numbers(c.state_heads, c.values));
  inputs.add(at::randn({rows, c.state_heads, c.keys, c.values}));
  if (c.delta) inputs.add(at::rand({c.batch, c.tokens, c.state_heads}));
  if (c.bonus) inputs.add(at::randn({c.state_heads, c.keys}));
  if (gates) inputs.add(some_decays(c));
  const auto& [narrow, leaves] = inputs;
  const double scale = 0.125;
  const auto [o, last] = defined(c, leaves, gates ? OptionalTensor(leaves.back()) : std::nullopt, scale);

  cuda::EmulatedMachine::Kernels kernels;
  add_widths<64>(kernels);
  add_widths<128>(kernels);
  add_widths<256>(kernels);
  cuda::EmulatedMachine machine(kernels, c.order);
  FormInputs in;
  in.x = narrow[1];
  in.v = narrow[2];
  in.initial = expand_heads(narrow[3], c.heads, 1);
  if (c.delta) in.beta = narrow[4];
  if (c.bonus) in.bonus = narrow[4];
  if (gates) in.g = factors ? narrow.back().unsqueeze(0).unsqueeze(2) : narrow.back();
  (c.read_values ? in.w : in.y) = narrow[0];
  FormOptions options{.heads = c.heads, .type = at::kFloat};
  options.reverse = c.reverse;
  if (factors) options.decay = DecayKind::kFactors;
  (c.read_values ? options.want_y : options.want_w) = true;
  const auto* packed = c.bounds.empty() ? nullptr : &c.bounds;
  const FormOutputs read = evaluate_by_tokens(in, options, scale, packed, machine, c.parts);
  expect_near(c.read_values ? read.y : read.w, o, "o");
  expect_near(first_copy(read.final_state, c.state_heads), last, "last state");

  const Tensor grad_o = numbers(c.heads, told), grad_last = at::randn(last.sizes());
  const auto right = torch::autograd::grad({o, last}, leaves, {grad_o.to(at::kDouble), grad_last.to(at::kDouble)});
  (c.read_values ? in.y : in.w) = grad_o;
  in.final_grad = to_first_copy(grad_last, c.heads);
  options.want_y = !c.read_values;
  options.want_w = c.read_values;
  options.want_rest = true;
  options.want_gate = gates && !factors;
  const FormOutputs out = evaluate_by_tokens(in, options, scale, packed, machine, c.parts);
  const auto summed = [&](const Tensor& x, int64_t at) { return x.unflatten(at, {c.state_heads, -1}).sum(at + 1); };
  expect_near(c.read_values ? out.w : out.y, right[0], "dq");
  expect_near(summed(out.x, 2), right[1], "dk");
  expect_near(summed(out.v, 2), right[2], "dv");
  expect_near(summed(out.initial, 1), right[3], "dS_0");
  if (c.delta) expect_near(summed(out.beta, 2), right[4], "dbeta", 1e-5);
  if (c.bonus) expect_near(summed(out.bonus.sum(0), 0), right[4], "dbonus");
  if (options.want_gate) expect_near(summed(out.g, 2), right.back(), "dg", 2e-5);
}

TEST(TokensOnGpu, EveryOrderOfThreadsAndCopies) {
  for (const bool backwards : {false, true}) {
    for (const bool alone : {false, true}) {
      for (const bool late : {false, true}) {
        const gpu::Order order{backwards, alone, late};
        check({.tokens = 40, .heads = 1, .state_heads = 1, .order = order});
        check({.tokens = 40, .heads = 1, .state_heads = 1, .delta = true, .order = order});
        check({.tokens = 70, .heads = 1, .state_heads = 1, .decays = Decays::kHeads, .parts = 2, .order = order});
      }
    }
  }
}

TEST(TokensOnGpu, EveryLength) {
  for (const int64_t tokens : {1, 2, 15, 16, 17, 64, 300}) check({.tokens = tokens, .heads = 1, .state_heads = 1});
}

TEST(TokensOnGpu, HeadsRowsAndWidths) {
  check({.batch = 2, .tokens = 20, .heads = 4, .state_heads = 2});
  check({.keys = 3, .values = 5, .batch = 2});
  check({.keys = 100, .values = 65, .tokens = 20, .decays = Decays::kHeads});
  check({.keys = 200, .values = 129, .tokens = 20, .heads = 1, .state_heads = 1});
}

TEST(TokensOnGpu, EveryDecay) {
  for (const Decays decays : {Decays::kNone, Decays::kHeads, Decays::kChannels, Decays::kFactors}) {
    check({.decays = decays});
    check({.decays = decays, .read_values = true});
    if (decays != Decays::kFactors)
      check({.tokens = 300, .heads = 1, .state_heads = 1, .decays = decays, .reverse = true});
  }
  check({.cuts = true});
  check({.decays = Decays::kHeads, .reverse = true, .cuts = true, .read_values = true});
}

TEST(TokensOnGpu, DeltaRule) {
  for (const Decays decays : {Decays::kNone, Decays::kHeads, Decays::kChannels}) {
    check({.decays = decays, .delta = true});
    check({.keys = 5, .values = 7, .tokens = 300, .state_heads = 1, .decays = decays, .delta = true});
  }
  check({.keys = 128, .tokens = 20, .delta = true, .cuts = true});
}

TEST(TokensOnGpu, Bonus) {
  for (const Decays decays : {Decays::kNone, Decays::kHeads, Decays::kChannels}) {
    check({.decays = decays, .bonus = true});
    check({.keys = 5, .values = 7, .batch = 2, .heads = 4, .decays = decays, .bonus = true, .reverse = true});
  }
  check({.tokens = 130, .bonus = true, .cuts = true, .bounds = {0, 3, 3, 70, 130}, .parts = 2});
}

TEST(TokensOnGpu, PartsOfTimeAndPacked) {
  for (const bool read_values : {false, true}) {
    check({.tokens = 330, .heads = 1, .state_heads = 1, .read_values = read_values, .parts = 3});
    check({.tokens = 130, .decays = Decays::kFactors, .read_values = read_values, .parts = 2});
  }
  check({.tokens = 130, .decays = Decays::kHeads, .reverse = true, .bounds = {0, 3, 3, 70, 130}, .parts = 2});
  check({.keys = 200, .values = 8, .tokens = 130, .heads = 1, .state_heads = 1, .parts = 2});  // four quads per lane
  check({.tokens = 330, .heads = 1, .state_heads = 1, .bounds = {0, 1, 330}});
  check({.tokens = 330, .heads = 1, .state_heads = 1, .delta = true, .bounds = {0, 1, 1, 330}});
}

// The errors of thousands of very slow decays do not add up.
TEST(TokensOnGpu, SlowDecays) {
  check({.keys = 4, .values = 4, .tokens = 2000, .heads = 1, .state_heads = 1, .decays = Decays::kHeads, .slow = 1e-4});
}

}  // namespace
}  // namespace cortado::tokens_gpu_test
