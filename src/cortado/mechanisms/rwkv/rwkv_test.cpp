#include <gtest/gtest.h>

#include <map>

#include "cortado/mechanisms/registry.h"
#include "cortado/mechanisms/rwkv/wkv.h"
#include "cortado/testing/compare.h"

namespace cortado::rwkv_test {
namespace {

Tensor a_channel(const std::vector<double>& values) {
  return at::tensor(values, at::kDouble).to(at::kFloat).reshape({1, static_cast<int64_t>(values.size()), 1});
}

// p(s|t), [T, T], of one channel: k is repeated in T channels, and channel s has the s-th unit vector as v.
Tensor weights_of(const Tensor& k, double w, double u) {
  const int64_t tokens = k.size(1);
  const Tensor v = at::eye(tokens, k.options()).unsqueeze(0);
  const Tensor all = at::ones({tokens}, k.options());
  return wkv(k.expand({1, tokens, tokens}), v, all * w, all * u, nullptr, {})[0];
}

// Logits of any size and sign in float32, compared with a softmax in float64.
TEST(Wkv, ExactAtExtremeLogits) {
  const std::vector<std::vector<double>> lists = {
      {1, 10, 1000}, {1000, 10, 1}, {1e4, -1e4, 1e4, 0}, {-1e4, -1e4, -1e4}, {0, 0, 0, 1e4, 1e4}};
  for (const auto& list : lists) {
    for (const double w : {0.0, 0.25, 100.0}) {
      const Tensor k = a_channel(list), p = weights_of(k, w, 0.5);
      const int64_t tokens = k.size(1);
      for (int64_t t = 0; t < tokens; ++t) {
        const Tensor age = t - 1 - at::arange(t, at::kDouble);
        const Tensor past = k[0].select(1, 0).narrow(0, 0, t).to(at::kDouble) - age * w;
        const Tensor now = k[0].select(1, 0).narrow(0, t, 1).to(at::kDouble) + 0.5;
        EXPECT_CLOSE(p[t].narrow(0, 0, t + 1), at::softmax(at::cat({past, now}), 0), 1e-6) << "w " << w << ", t " << t;
      }
    }
  }
}

// A common offset changes nothing, over a long sequence, and the weights sum to one.
TEST(Wkv, OffsetsDoNotMatter) {
  at::manual_seed(6);
  const Tensor k = (at::randn({1, 4096, 3}) * 16).round() / 4, v = at::randn({1, 4096, 3});
  const Tensor w = at::tensor({0.0, 0.001, 0.7}, at::kFloat), u = at::tensor({0.5, -1.0, 3.0}, at::kFloat);
  const Tensor plain = wkv(k, v, w, u, nullptr, {});
  for (const double offset : {100.0, -100.0, 1e4, -1e4}) {
    EXPECT_CLOSE(wkv(k + offset, at::ones_like(v), w, u, nullptr, {}), at::ones_like(v), 2e-6) << offset;
    EXPECT_CLOSE(wkv(k + offset, v, w, u, nullptr, {}), plain, 5e-6) << offset;
  }
}

// The first token has no previous one, so a projection that takes only the previous token is zero, and so is the
// output. Conformance tests cannot see a wrong mix: the definition has the same operands.
TEST(Rwkv6, EveryProjectionHasItsMix) {
  at::manual_seed(1);
  MixerContext context;
  context.dim = 24;
  context.heads = 4;
  const auto mixer = make_mixer(parse_json(R"({"mixer": "rwkv6"})", "test"), context, "test");
  const at::NoGradGuard no_grad;
  const Tensor x = at::randn({1, 1, 24});
  Tensor mix = mixer->named_parameters()["mix"];
  for (const int64_t own : {0, 1, 2, 3, 4}) {  // r, w, k, v, g
    mix.zero_();
    mix.select(0, own).fill_(1);
    const bool zero = mixer->forward(x, {}, nullptr).eq(0).all().item<bool>();
    EXPECT_EQ(zero, own != 1) << own;  // index 1 is the decay, which acts from the second token on
  }
}

// Multiples of 32 near 2.5 √D, 1.7 √D and 5 √D, halves to the even one, as the authors' code rounds.
TEST(Rwkv7, RanksGrowWithTheWidth) {
  std::map<std::string, Json> ranks;
  for (const auto& question : settings_of(find_mechanism("rwkv7"), {.dim = 1024, .heads = 16})) {
    ranks[question.key] = question.fallback;
  }
  EXPECT_EQ(ranks["decay_rank"], 64);
  EXPECT_EQ(ranks["rate_rank"], 64);
  EXPECT_EQ(ranks["value_rank"], 64);
  EXPECT_EQ(ranks["gate_rank"], 160);
}

// What a kernel computes where no derivative is wanted is what the operators give: with heads that are no whole vectors
// and with wider ones, packed sequences of which one is empty, from a state, with the first layer's values.
TEST(Rwkv7, WithoutDerivatives) {
  at::manual_seed(2);
  for (const int64_t head_dim : {6, 20, 64}) {
    MixerContext context;
    context.dim = 2 * head_dim;
    context.heads = 2;
    context.layer = 1;
    context.layers = 3;
    const auto mixer = make_mixer(parse_json(R"({"mixer": "rwkv7"})", "test"), context, "test");
    const auto options = at::TensorOptions(at::kFloat);
    {
      const at::NoGradGuard no_grad;
      for (Tensor& parameter : mixer->parameters()) parameter.add_(at::randn_like(parameter) * 0.3);
    }
    const Tensor x = at::randn({1, 9, context.dim}), first = at::randn({1, 9, context.dim});
    const auto run = [&](bool derivatives, std::vector<Tensor>& all) {
      const at::AutoGradMode mode(derivatives);
      Tensor values = first;
      const Batch batch{.cu_seqlens = at::tensor({0, 4, 4, 9}, at::kLong), .first_values = &values};
      SequenceState state = mixer->zero_state(3, options);
      all.push_back(mixer->forward(x, batch, &state));
      for (int step = 0; step < 2; ++step)
        all.push_back(mixer->forward(x[0].narrow(0, 3 * step, 3).unsqueeze(1), {}, &state));
      for (const auto& [name, tensor] : state.tensors()) all.push_back(tensor);
      all.push_back(mixer->forward(x, {}, nullptr));
    };
    std::vector<Tensor> with, without;
    run(true, with);
    run(false, without);
    ASSERT_EQ(with.size(), without.size());
    for (size_t i = 0; i < with.size(); ++i) EXPECT_CLOSE(without[i], with[i].detach(), 2e-6) << head_dim << ", " << i;
  }
}

TEST(Rwkv7, ChannelMixWithoutDerivatives) {
  at::manual_seed(3);
  MixerContext context;
  context.dim = 20;
  const auto mixer = make_mixer(parse_json(R"({"mixer": "rwkv7_channel_mix"})", "test"), context, "test");
  const Tensor x = at::randn({2, 5, 20});
  const Tensor expected = mixer->forward(x, {}, nullptr).detach();
  const at::NoGradGuard no_grad;
  EXPECT_CLOSE(mixer->forward(x, {}, nullptr), expected, 1e-6);
}

}  // namespace
}  // namespace cortado::rwkv_test
