#include <gtest/gtest.h>

#include "cortado/mechanisms/lolcats/mixer.h"
#include "cortado/primitives/window_attention/op.h"
#include "cortado/testing/compare.h"
#include "cortado/testing/errors.h"

namespace cortado::lolcats_test {
namespace {

struct Inputs {
  Tensor q, k, v, phi_q, phi_k, factor;
  std::vector<Tensor> all() const { return {q, k, v, phi_q, phi_k, factor}; }
};

Inputs random_inputs(int64_t tokens, double logits = 1) {
  at::manual_seed(tokens);
  const auto normal = [&](int64_t width) { return at::randn({2, tokens, 4, width}, at::kDouble); };
  Inputs in{normal(4) * logits, normal(4), normal(3), normal(6).abs(), normal(6).abs(), at::randn({4}, at::kDouble)};
  for (Tensor* x : {&in.q, &in.k, &in.v, &in.phi_q, &in.phi_k, &in.factor}) x->requires_grad_(true);
  return in;
}

const LolcatsLayout kLayouts[] = {LolcatsLayout::kSliding, LolcatsLayout::kTerrace};
const LolcatsMixture kMixtures[] = {LolcatsMixture::kLolcats, LolcatsMixture::kGated, LolcatsMixture::kPlain};

Tensor run(const Inputs& in, const LolcatsRule& rule) {
  return lolcats(in.q, in.k, in.v, in.phi_q, in.phi_k, in.factor, rule);
}

TEST(Lolcats, EveryMixtureAndLayoutEqualsItsDefinition) {
  for (const LolcatsLayout layout : kLayouts) {
    for (const LolcatsMixture mixture : kMixtures) {
      for (const auto& [tokens, window] : {std::pair{1, 1}, {9, 4}, {16, 4}, {17, 1}, {65, 16}, {30, 64}}) {
        const LolcatsRule rule{window, layout, mixture, tokens % 2 ? std::optional<double>(0.3) : std::nullopt};
        const Inputs in = random_inputs(tokens);
        const Tensor got = run(in, rule);
        const Tensor right = lolcats_reference(in.q, in.k, in.v, in.phi_q, in.phi_k, in.factor, rule);
        EXPECT_CLOSE(got, right, 1e-10) << tokens << " " << window;
        const auto weights = testing::weights_like({right});
        testing::expect_gradients_close(testing::gradients({got}, weights, in.all()),
                                        testing::gradients({right}, weights, in.all()), 1e-9);
      }
    }
  }
}

// While everything is in reach of the softmax part it is softmax attention, whatever the mixture and the factor.
TEST(Lolcats, IsSoftmaxWithinTheWindow) {
  const Inputs in = random_inputs(20);
  const Tensor right = std::get<0>(window_attention_reference(in.q, in.k, in.v));
  for (const LolcatsMixture mixture : kMixtures) {
    EXPECT_CLOSE(run(in, {20, LolcatsLayout::kSliding, mixture, {}}), right, 1e-11);
    EXPECT_CLOSE(run(in, {10, LolcatsLayout::kTerrace, mixture, {}}), right, 1e-11);
  }
}

TEST(Lolcats, WeightsSumToOne) {
  Inputs in = random_inputs(90);
  in.v = at::ones({2, 90, 4, 1}, at::kDouble);
  for (const LolcatsLayout layout : kLayouts) {
    for (const LolcatsMixture mixture : kMixtures) {
      EXPECT_CLOSE(run(in, {8, layout, mixture, {}}), in.v, 1e-12);
    }
  }
}

// Scores of ±1e4, where e^s is infinite or 0: finite and right, gradients too, in float32 as well.
TEST(Lolcats, DoesNotOverflow) {
  for (const LolcatsLayout layout : kLayouts) {
    for (const LolcatsMixture mixture : kMixtures) {
      for (const double size : {1e4, -1e4}) {
        Inputs in = random_inputs(50);
        in.q = (at::ones_like(in.q) * size).requires_grad_(true);
        in.k = (at::ones_like(in.k) + 1e-4 * in.k.detach()).requires_grad_(true);
        const LolcatsRule rule{8, layout, mixture, {}};
        const Tensor right = lolcats_reference(in.q, in.k, in.v, in.phi_q, in.phi_k, in.factor, rule);
        EXPECT_CLOSE(run(in, rule), right, 1e-9);
        for (const auto& x : testing::gradients({run(in, rule)}, testing::weights_like({right}), in.all())) {
          EXPECT_TRUE(x.isfinite().all().item<bool>());
        }
        for (Tensor* x : {&in.q, &in.k, &in.v, &in.phi_q, &in.phi_k, &in.factor}) *x = x->detach().to(at::kFloat);
        EXPECT_TRUE(run(in, rule).isfinite().all().item<bool>());
      }
    }
  }
}

TEST(Lolcats, HeadsBroadcastAndPackedSequencesStayApart) {
  const Inputs in = random_inputs(60);
  const Tensor q = in.q.narrow(0, 0, 1), k = in.k.narrow(0, 0, 1).narrow(2, 0, 1),
               v = in.v.narrow(0, 0, 1).narrow(2, 0, 2);
  const Tensor phi_q = in.phi_q.narrow(0, 0, 1), phi_k = in.phi_k.narrow(0, 0, 1);
  const auto wide = [](const Tensor& x) { return x.repeat_interleave(4 / x.size(2), 2); };
  for (const LolcatsLayout layout : kLayouts) {
    const LolcatsRule rule{4, layout, LolcatsMixture::kLolcats, {}};
    std::vector<Tensor> parts;
    for (const auto& [first, length] : {std::pair{0, 1}, {1, 22}, {23, 37}}) {
      const auto part = [first = first, length = length](const Tensor& x) { return x.narrow(1, first, length); };
      parts.push_back(
          lolcats_reference(part(q), part(wide(k)), part(wide(v)), part(phi_q), part(phi_k), in.factor, rule));
    }
    const Tensor bounds = at::tensor({0, 1, 1, 23, 60}, at::kInt);
    EXPECT_CLOSE(lolcats(q, k, v, phi_q, phi_k, in.factor, rule, bounds), at::cat(parts, 1), 1e-11);
  }
}

TEST(Lolcats, StartsAsPublished) {
  MixerContext context;
  context.dim = 32;
  context.heads = 2;
  const auto mixer = make_mixer(parse_json(R"({"mixer": "lolcats", "features": 8})", "test"), context, "test");
  const auto parameters = mixer->named_parameters();
  EXPECT_CLOSE(parameters["window_factor"].sigmoid(), at::full({2}, 0.1), 1e-6);
  EXPECT_TRUE(at::equal(parameters["phi_q.weight"][1], at::eye(16, 8)));
  EXPECT_EQ(parameters["phi_k.weight"].numel(), 2 * 16 * 8);
}

TEST(Lolcats, SaysWhatDoesNotFit) {
  const Inputs in = random_inputs(4);
  EXPECT_EQ(testing::error_of([&] { run(in, {0, LolcatsLayout::kSliding, LolcatsMixture::kPlain, {}}); }),
            "[lolcats] window must be at least 1, got 0");
  EXPECT_EQ(testing::error_of([] { lolcats_layout("tk"); }),
            "[lolcats] layout must be \"sliding\" or \"terrace\", got \"tk\"");
  EXPECT_EQ(testing::error_of([] { lolcats_mixture("none"); }),
            "[lolcats] mixture must be \"lolcats\", \"gated\" or \"plain\", got \"none\"");
  EXPECT_THROW(lolcats(in.q, in.k, in.v, in.phi_q, in.phi_k, at::zeros({3}), {}), InputError);
}

}  // namespace
}  // namespace cortado::lolcats_test
