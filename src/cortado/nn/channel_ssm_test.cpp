// The chunked form of channel systems against their recurrence, token by token.
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>

#include "cortado/base/error.h"
#include "cortado/nn/diagonal_ssm.h"
#include "cortado/testing/compare.h"

namespace cortado {
namespace {

using testing::expect_gradients_close;
using testing::gradients;
using testing::weights_like;

struct Case {
  int64_t batch, tokens;
  bool complex, input, state, reverse;
  std::vector<int64_t> bounds;  // packed when not empty
};

constexpr int64_t kChannels = 3, kStates = 2;

struct Inputs {
  ChannelSystem system;
  Tensor u, start;  // start: real, undefined for zero
  Batch batch;

  explicit Inputs(const Case& c) {
    const auto type = c.complex ? at::kComplexDouble : at::kDouble;
    const Tensor rate = -at::rand({kChannels, kStates}, at::kDouble).pow(3) * 2;
    const Tensor turn = at::randn({kChannels, kStates}, at::kDouble);
    system.log_a = (c.complex ? at::complex(rate, turn) : rate).requires_grad_(true);
    if (c.input) system.input = at::randn({kChannels, kStates}, type).requires_grad_(true);
    system.read = at::randn({kChannels, kStates}, type).requires_grad_(true);
    u = at::randn({c.batch, c.tokens, kChannels}, at::kDouble).requires_grad_(true);
    if (!c.bounds.empty()) batch.cu_seqlens = at::tensor(c.bounds, at::kLong);
    if (!c.state) return;
    start = at::randn({batch.rows(u), kChannels * kStates}, type);
    start = (c.complex ? at::view_as_real(start) : start).requires_grad_(true);
  }
  std::vector<Tensor> leaves() const {
    std::vector<Tensor> all = {system.log_a, system.read, u};
    if (system.input.defined()) all.push_back(system.input);
    if (start.defined()) all.push_back(start);
    return all;
  }
  // y and, with a start, the last state.
  std::vector<Tensor> fast(bool reverse) const {
    if (!start.defined()) return {channel_ssm(system, u, batch, nullptr, "h", reverse)};
    SequenceState state("test");
    state.add("h", start);
    const Tensor y = channel_ssm(system, u, batch, &state, "h", reverse);
    return {y, state.at("h")};
  }
};

// Computes one sequence x [B,T,D] from h [B,D,N], which is updated to its last value.
Tensor recurrence(const ChannelSystem& system, const Tensor& x, Tensor& h, bool reverse) {
  std::vector<Tensor> y(x.size(1));
  for (int64_t i = 0; i < x.size(1); ++i) {
    const int64_t t = reverse ? x.size(1) - 1 - i : i;
    Tensor b = x.select(1, t).unsqueeze(2);
    if (system.input.defined()) b = b * system.input;
    h = system.log_a.exp() * h + b;
    y[t] = at::real((system.read * h).sum(2));
  }
  return y.empty() ? x : at::stack(y, 1);
}

std::vector<Tensor> definition(const Inputs& in, bool reverse) {
  const Tensor& log_a = in.system.log_a;
  Tensor start = at::zeros({in.batch.rows(in.u), log_a.numel()}, log_a.options());
  if (in.start.defined()) start = log_a.is_complex() ? at::view_as_complex(in.start) : in.start;
  start = start.unflatten(1, log_a.sizes());
  std::vector<Tensor> outputs, states;
  const Tensor bounds = in.batch.cu_seqlens.value_or(at::tensor({int64_t{0}, in.u.size(1)}, at::kLong));
  for (int64_t n = 0; n + 1 < bounds.size(0); ++n) {
    const auto from = bounds[n].item<int64_t>(), to = bounds[n + 1].item<int64_t>();
    Tensor h = in.batch.cu_seqlens ? start.narrow(0, n, 1) : start;
    outputs.push_back(recurrence(in.system, in.u.narrow(1, from, to - from), h, reverse));
    states.push_back(h.flatten(1));
  }
  std::vector<Tensor> results = {at::cat(outputs, 1)};
  if (!in.start.defined()) return results;
  results.push_back(at::cat(states, 0));
  if (log_a.is_complex()) results[1] = at::view_as_real(results[1]);
  return results;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const int64_t tokens : {0, 1, 2, 63, 64, 65, 128, 200}) {
    for (const bool complex : {false, true}) {
      all.push_back({2, tokens, complex, tokens % 2 == 0, true, false, {}});
      all.push_back({1, tokens, complex, tokens % 2 != 0, tokens % 3 == 0, true, {}});
    }
  }
  for (const bool complex : {false, true}) {
    for (const bool reverse : {false, true}) {
      all.push_back({1, 220, complex, true, true, reverse, {0, 0, 1, 150, 179, 179, 220}});
      all.push_back({1, 60, complex, false, false, reverse, {0, 20, 40, 60}});
    }
    all.push_back({1, 1, complex, true, true, false, {0, 1, 1}});
  }
  return all;
}

TEST(ChannelSsm, EqualsTheRecurrence) {
  at::manual_seed(1);
  for (const Case& c : cases()) {
    SCOPED_TRACE(concat("T=", c.tokens, " complex=", c.complex, " input=", c.input, " state=", c.state,
                        " reverse=", c.reverse, " packed=", !c.bounds.empty()));
    const Inputs in(c);
    const auto actual = in.fast(c.reverse), expected = definition(in, c.reverse);
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t i = 0; i < actual.size(); ++i) EXPECT_CLOSE(actual[i], expected[i], 1e-12);
    const auto weights = weights_like(expected);
    expect_gradients_close(gradients(actual, weights, in.leaves()), gradients(expected, weights, in.leaves()), 1e-11);
  }
}

// Slow and fast decays and rotations; a state that passes many chunks is rounded once per chunk.
TEST(ChannelSsm, Float32StaysNearFloat64) {
  at::manual_seed(2);
  const Tensor u = at::randn({1, 4000, kChannels}, at::kDouble),
               read = at::randn({kChannels, kStates}, at::kComplexDouble);
  for (const double rate : {-1e-4, -0.1, -10.0}) {
    for (const double turn : {0.0, 0.01, 3.0}) {
      // Numbers that are exact in float32.
      const Tensor log_a = at::full({kChannels, kStates}, c10::complex<double>(rate, turn), at::kComplexFloat);
      const ChannelSystem exact{log_a.to(at::kComplexDouble), {}, read};
      const ChannelSystem rounded{log_a, {}, read.to(at::kComplexFloat)};
      EXPECT_CLOSE(channel_ssm(rounded, u.to(at::kFloat), {}, nullptr, ""), channel_ssm(exact, u, {}, nullptr, ""),
                   1e-4)
          << rate << " " << turn;
    }
  }
}

TEST(ChannelSsm, ForgettingEverythingLeavesTheLastInput) {
  const Tensor log_a = at::full({kChannels, kStates}, -INFINITY, at::kDouble).requires_grad_(true);
  const Tensor read = at::randn({kChannels, kStates}, at::kDouble), u = at::randn({1, 100, kChannels}, at::kDouble);
  const Tensor y = channel_ssm({log_a, {}, read}, u, {}, nullptr, "");
  EXPECT_CLOSE(y, u * read.sum(1), 1e-14);
  EXPECT_EQ(gradients({y}, weights_like({y}), {log_a})[0].abs().max().item<double>(), 0);
}

TEST(ChannelSsm, IsLeftAloneByAutocast) {
  at::manual_seed(3);
  const Tensor log_a = -at::rand({kChannels, kStates}), read = at::randn({kChannels, kStates});
  const Tensor u = at::randn({2, 100, kChannels});
  const Tensor expected = channel_ssm({log_a, {}, read}, u, {}, nullptr, "");
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const Tensor y = channel_ssm({log_a, {}, read}, u, {}, nullptr, "");
  at::autocast::set_autocast_enabled(at::kCPU, false);
  EXPECT_TRUE(at::equal(y, expected));
}

}  // namespace
}  // namespace cortado
