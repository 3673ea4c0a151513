#include "cortado/analyze/traces.h"

#include <gtest/gtest.h>

#include <cmath>

#include "cortado/analyze/analyze.h"
#include "cortado/mechanisms/registry.h"
#include "cortado/primitives/delta_scan/op.h"
#include "cortado/primitives/elementwise_scan/op.h"
#include "cortado/primitives/gated_scan/op.h"
#include "cortado/testing/examples.h"
#include "cortado/testing/models.h"

namespace cortado::traces_test {

using testing::byte_model;

at::Tensor numbers(const std::vector<double>& values, at::IntArrayRef shape) {
  return at::tensor(values, at::kDouble).reshape(shape);
}

void expect_close(const at::Tensor& got, const at::Tensor& wanted, double tolerance = 1e-9) {
  ASSERT_EQ(got.sizes(), wanted.sizes());
  EXPECT_LT((got - wanted).abs().max().item<double>(), tolerance) << got << wanted;
}

std::shared_ptr<Mixer> mixer(const Json& settings) {
  torch::manual_seed(3);
  MixerContext context;
  context.dim = 24;
  context.heads = 4;
  return make_mixer(settings, context, "test");
}

at::Tensor input(int64_t tokens) {
  torch::manual_seed(5);
  return at::randn({1, tokens, 24});
}

// The state halves at every token: 2, then 1 + 3, then 2 + 0 in the first channel and 6 in the second.
TEST(GateTrace, OfAScanByHand) {
  const at::Tensor k = numbers({1, 0, 1, 0, 0, 1}, {1, 3, 1, 2}), v = numbers({2, 3, 6}, {1, 3, 1, 1});
  const at::Tensor g = at::full({1, 3, 1}, std::log(0.5), at::kDouble);
  const auto trace = gate_trace(captured([&] { gated_scan(k, k, v, g); }), 1, k.size(1));
  ASSERT_TRUE(trace);
  expect_close(trace->norm, numbers({2, 4, std::sqrt(4.0 + 36)}, {1, 3}));
  expect_close(trace->decay, numbers({0.5, 0.5, 0.5}, {1, 3}));
}

// Constant gates of two channels: 1 and 1/4.
TEST(GateTrace, OfChannelsByHand) {
  const at::Tensor k = numbers({1, 1, 0, 0}, {1, 2, 1, 2}), v = numbers({4, 0}, {1, 2, 1, 1});
  const at::Tensor g = numbers({0, std::log(0.25)}, {1, 2});
  const auto trace = gate_trace(captured([&] { gated_scan(k, k, v, g); }), 1, k.size(1));
  expect_close(trace->norm, numbers({std::sqrt(32.0), std::sqrt(17.0)}, {1, 2}));
  expect_close(trace->decay, numbers({0.625, 0.625}, {1, 2}));
  expect_close(trace->least, numbers({0.25, 0.25}, {1, 2}));
  expect_close(trace->most, numbers({1, 1}, {1, 2}));
}

// The value stored under a key is replaced: half of it at first (beta 0.5), then all of it (beta 1).
TEST(GateTrace, OfADeltaRuleByHand) {
  const at::Tensor k = at::ones({1, 2, 1, 1}, at::kDouble), v = numbers({4, 7}, {1, 2, 1, 1});
  const auto trace = gate_trace(captured([&] { delta_scan(k, k, v, numbers({0.5, 1}, {1, 2, 1})); }), 1, 2);
  expect_close(trace->norm, numbers({2, 7}, {1, 2}));
  expect_close(trace->decay, numbers({1, 1}, {1, 2}));
}

TEST(GateTrace, OfChannelsThatStandAloneByHand) {
  const at::Tensor log_a = at::full({1, 2, 2}, std::log(0.5), at::kDouble), b = numbers({6, 8, 1, 0}, {1, 2, 2});
  const auto calls = captured([&] { elementwise_scan(log_a, b); });
  expect_close(gate_trace(calls, 1, 2)->norm, numbers({10, std::sqrt(32.0)}, {1, 2}));
  expect_close(gate_trace(calls, 2, 2)->norm, numbers({6, 4, 8, 4}, {2, 2}));
}

// The last norm equals the norm of the operator's final state.
TEST(GateTrace, EndsWithTheOperatorsState) {
  int traced = 0;
  for (const std::string& settings : testing::causal_mixers()) {
    SCOPED_TRACE(settings);
    const auto it = mixer(parse_json(settings, "test"));
    const auto calls = calls_of(*it, input(9));
    const auto trace = gate_trace(calls, 4, 9);
    if (!trace) continue;
    EXPECT_EQ(trace->norm.size(1), 9);
    EXPECT_LE(trace->most.max().item<double>(), 1 + 1e-6);
    EXPECT_GE(trace->least.min().item<double>(), 0);
    const auto scan = std::find_if(calls.begin(), calls.end(), [](const OperatorCall& call) {
      const bool by_values = std::any_of(call.inputs.begin(), call.inputs.end(), [](const c10::IValue& input) {
        return input.isString() && input.toStringRef() == "value";
      });
      return (call.name == "cortado::gated_scan" && !by_values) || call.name == "cortado::delta_scan" ||
             call.name == "cortado::dplr_scan";
    });
    if (scan == calls.end()) continue;
    const at::Tensor last = scan->outputs[1].toTensor()[0].to(at::kDouble).flatten(1).norm(2, -1);
    expect_close(trace->norm.select(1, 8), last, 1e-4 * (1 + last.max().item<double>()));
    ++traced;
  }
  EXPECT_GE(traced, 3);
}

// Checks which trace each mechanism has.
TEST(Traces, OfEachMechanism) {
  const std::vector<std::string> gated = {"gla",    "retention", "lightning", "hgrn2",   "mamba2",
                                          "mamba3", "rwkv6",     "rg_lru",    "griffin", "gated_delta_net",
                                          "kda",    "s5",        "delta_net", "rwkv7"};
  const std::vector<std::string> slots = {"abc", "gated_slot", "blurry_window"}, latents = {"latte", "macchiato"};
  for (const Mechanism* mechanism : mechanisms()) {
    if (!mechanism->causal) continue;
    SCOPED_TRACE(mechanism->name);
    const auto is_in = [&](const auto& names) {
      return std::find(names.begin(), names.end(), mechanism->name) != names.end();
    };
    const auto calls = calls_of(*mixer({{"mixer", mechanism->name}}), input(5));
    EXPECT_EQ(slot_trace(calls).has_value(), is_in(slots));
    EXPECT_EQ(latent_weights(calls).defined(), is_in(latents));
    if (is_in(gated)) {
      EXPECT_TRUE(gate_trace(calls, 4, 5)) << "no gates";
    }
    if (is_in(slots) || is_in(latents)) {
      EXPECT_FALSE(gate_trace(calls, 4, 5)) << "gates";
    }
  }
}

// The written values, weighted by the traced contents, give the operator's state.
TEST(SlotTrace, ContentsGiveTheState) {
  int traced = 0;
  for (const std::string& settings : testing::causal_mixers()) {
    SCOPED_TRACE(settings);
    const auto it = mixer(parse_json(settings, "test"));
    const at::Tensor x = input(9);
    const auto calls = calls_of(*it, x);
    const auto trace = slot_trace(calls);
    if (!trace) continue;
    ++traced;
    expect_close(trace->read.sum(-1), at::ones_like(trace->read.select(2, 0)), 1e-5);
    const OperatorCall& values = *std::find_if(calls.rbegin(), calls.rend(), [](const OperatorCall& call) {
      return call.name == "cortado::slot_scan" || call.name == "cortado::gated_scan";
    });
    const bool factors = values.name == "cortado::slot_scan";
    const at::Tensor v = values.tensor(factors ? "x" : "v")[0].transpose(0, 1).to(at::kDouble);  // [H, T, V]
    const at::Tensor held = values.outputs[1].toTensor()[0].to(at::kDouble);                     // [H, M, V]
    const at::Tensor shares = trace->contents(8).sum(-1);
    if (trace->normalized) expect_close(shares, at::ones_like(shares), 1e-6);
    SlotTrace sums = *trace;
    sums.normalized = false;  // the state is not divided yet
    expect_close(at::matmul(sums.contents(8), v), held, 1e-4);
  }
  if (traced == 0) GTEST_SKIP() << "no mechanism with slots";
}

// Compares with the mechanism's own formula, for slots whose contents do not depend on the tokens.
TEST(SlotTrace, OfSlotsThatFollowTime) {
  CORTADO_NEEDS("blurry_window");
  for (const bool decay : {true, false}) {
    const Json settings = {{"slots", 5}, {"period", 8}, {"decay", decay}, {"heads", 2}, {"rotary", true}};
    Json whole = settings;
    whole["mixer"] = "blurry_window";
    const auto trace = slot_trace(calls_of(*mixer(whole), input(11)));
    ASSERT_TRUE(trace);
    const at::Tensor wanted = find_mechanism("blurry_window").slot_contents(settings, 11);
    expect_close(trace->contents(10)[0], wanted, 1e-5);
    EXPECT_EQ(trace->contents(3).sizes(), (at::IntArrayRef{2, 5, 4}));
  }
}

// A slot's weights are the softmax of its logits over time.
TEST(SlotTrace, OfASoftmaxOverTime) {
  CORTADO_NEEDS("abc");
  const auto abc = mixer({{"mixer", "abc"}, {"slots", 3}});
  const at::Tensor x = input(6), weight = abc->named_parameters()["s.weight"].detach();
  const at::Tensor logits = at::matmul(x[0], weight.t()).unflatten(1, {4, 3}).permute({1, 2, 0});  // [H, M, T]
  const auto trace = slot_trace(calls_of(*abc, x));
  ASSERT_TRUE(trace);
  expect_close(trace->contents(5), at::softmax(logits.to(at::kDouble), -1), 1e-5);
  expect_close(trace->contents(2), at::softmax(logits.narrow(2, 0, 3).to(at::kDouble), -1), 1e-5);
}

// A pair's score is the norm of its value if the state is empty, and the distance of the two values if the state holds
// one pair.
TEST(Held, ScoresByHand) {
  CORTADO_NEEDS("lola");
  const auto lola = mixer({{"mixer", "lola"}, {"chunk", 2}, {"cache", 1}});
  const at::Tensor x = input(8);
  const HeldPairs held = lola->held(x);
  const at::Tensor v = at::matmul(x[0], lola->named_parameters()["v.weight"].detach().t()).unflatten(1, {4, 6});
  for (int64_t head = 0; head < 4; ++head) {
    const auto score = [&](int64_t t, int64_t s) { return held.scores[head][t][s].item<double>(); };
    const auto value = [&](int64_t s) { return v[s][head]; };
    // Tokens 0 and 1 leave the window when token 4 is read.
    EXPECT_NEAR(score(4, 0), value(0).norm().item<double>(), 1e-5);
    EXPECT_NEAR(score(4, 1), value(1).norm().item<double>(), 1e-5);
    EXPECT_TRUE(std::isnan(score(4, 2)));
    EXPECT_TRUE(std::isnan(score(5, 0)));
    const int64_t kept = score(4, 0) >= score(4, 1) ? 0 : 1, stored = 1 - kept;
    EXPECT_EQ(held.places[head][4][kept].item<int64_t>(), 1);
    EXPECT_EQ(held.places[head][4][stored].item<int64_t>(), 2);
    EXPECT_TRUE(std::isnan(score(6, stored)));
    for (const int64_t s : {kept, int64_t{2}, int64_t{3}}) {
      EXPECT_NEAR(score(6, s), (value(s) - value(stored)).norm().item<double>(), 1e-5);
    }
  }
}

// Windows of three kinds: 2 tokens in terraces, 3 tokens sliding, and one with decay.
TEST(Held, OfWindows) {
  const auto rows = [](const Json& settings) {
    const at::Tensor places = mixer(settings)->held(input(5)).places[0];
    std::vector<std::vector<int64_t>> found;
    for (int64_t t = 0; t < 5; ++t) {
      found.emplace_back();
      for (int64_t s = 0; s < 5; ++s) found.back().push_back(places[t][s].item<int64_t>());
    }
    return found;
  };
  using Rows = std::vector<std::vector<int64_t>>;
  if (testing::is_registered("lolcats")) {
    const Json terrace = {{"mixer", "lolcats"}, {"window", 2}, {"layout", "terrace"}};
    const Json sliding = {{"mixer", "lolcats"}, {"window", 3}, {"layout", "sliding"}};
    EXPECT_EQ(rows(terrace),
              (Rows{{0, -1, -1, -1, -1}, {0, 0, -1, -1, -1}, {0, 0, 0, -1, -1}, {0, 0, 0, 0, -1}, {1, 1, 0, 0, 0}}));
    EXPECT_EQ(rows(sliding),
              (Rows{{0, -1, -1, -1, -1}, {0, 0, -1, -1, -1}, {0, 0, 0, -1, -1}, {1, 0, 0, 0, -1}, {1, 1, 0, 0, 0}}));
  }
  EXPECT_EQ(
      rows({{"mixer", "sliding_window"}, {"window", 2}}),
      (Rows{{0, -1, -1, -1, -1}, {0, 0, -1, -1, -1}, {-1, 0, 0, -1, -1}, {-1, -1, 0, 0, -1}, {-1, -1, -1, 0, 0}}));
}

// The float32 copy of narrow weights gives the same attention weights up to rounding.
TEST(PlainMixer, OfNarrowWeights) {
  for (const std::string name : {"softmax", "latte"}) {
    if (!testing::is_registered(name)) continue;
    const std::string settings = Json{{"mixer", name}}.dump();
    const auto plain = byte_model(settings);
    const at::Tensor tokens = at::arange(7).unsqueeze(0);
    const auto weights = [&](LanguageModel& model) {
      const auto layer = read_layers({model, tokens, {}, {1}}).front();
      return pair_weights(*plain_mixer(model, 1), layer.x.to(at::kFloat), 4).weights.to(at::kDouble);
    };
    EXPECT_EQ(plain_mixer(*plain, 1), plain->mixers()[1]);
    const at::Tensor right = weights(*plain);
    for (const auto& [format, most] :
         {std::pair{WeightFormat::kInt8, 0.1}, {WeightFormat::kInt4, 0.4}, {WeightFormat::kBFloat16, 0.1}}) {
      const auto narrow = byte_model(settings);
      narrow->set_weight_format(format);
      EXPECT_NE(plain_mixer(*narrow, 1), narrow->mixers()[1]);
      expect_close(weights(*narrow), right, most);
    }
  }
}

}  // namespace cortado::traces_test
