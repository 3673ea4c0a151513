// Invariants of every mechanism. The tests enumerate the registry: each mechanism is tested with the settings of its
// folder's examples.json, causal and, if it has that form, bidirectional. states_test.cpp tests states.
#include "cortado/testing/conformance.h"

#include <gtest/gtest.h>

#include "cortado/nn/autocast.h"

namespace cortado {
namespace {

using testing::Conformance;
using testing::copy_weights;
using testing::expect_gradients_close;
using testing::expect_same_with_gradients;
using testing::gradients;
using testing::kWidth;
using testing::leaves;
using testing::Subject;
using testing::weights_like;

class CausalConformance : public Conformance {};

class BidirectionalConformance : public Conformance {};

class Normalized : public Conformance {};

// 1. The fast form equals the definition, outputs and all gradients.
TEST_P(Conformance, EqualsItsDefinition) {
  auto mixer = make();
  for (const int64_t tokens : {1, 2, 15, 16, 17, 63, 64, 65, 100, 257}) {
    SCOPED_TRACE(concat("T = ", tokens));
    const Tensor x = inputs(tokens > 100 ? 1 : 2, tokens);
    expect_same_with_gradients(*mixer, x, mixer->forward(x, {}, nullptr), mixer->reference(x), 1e-9);
  }
}

// Over a thousand tokens in float64. In float32, close to the float64 definition, gradients included; only for a
// mechanism's first example, because the definitions are slow.
TEST_P(Conformance, EqualsItsDefinitionOverAThousandTokens) {
  auto mixer = make();
  const bool first = GetParam().settings == testing::examples_of(*GetParam().mechanism).examples.front();
  const at::AutoGradMode differentiate(first);
  const Tensor x = inputs(1, 1000), expected = mixer->reference(x);
  EXPECT_CLOSE(mixer->forward(x, {}, nullptr), expected, 1e-9);
  if (!first) return;
  auto narrow = make(at::kFloat);
  copy_weights(*narrow, *mixer);
  const Tensor x32 = x.detach().to(at::kFloat).requires_grad_(true), y32 = narrow->forward(x32, {}, nullptr);
  EXPECT_CLOSE(y32, expected, 1e-4);
  const auto weights = weights_like({expected});
  expect_gradients_close(gradients({y32}, weights, leaves(*narrow, x32)),
                         gradients({expected}, weights, leaves(*mixer, x)), 1e-3, mixer->named_parameters().keys());
}

// 7. If the weights over the values are a distribution, values of one give outputs of one. Channel 0 of x is one
// everywhere and the value maps read that channel alone. A receptance gate with a zero map is 1/2.
TEST_P(Normalized, ValuesOfOneGiveOnes) {
  auto mixer = make();
  at::NoGradGuard no_grad;
  double share = 1;
  const auto named = named_weights(*mixer);
  for (const auto& weight : named) {
    Tensor value = weight.value();
    const std::string &name = weight.key(), part = name.substr(0, name.find('.'));
    if (part == "v" || part == "v_latent" || part == "v_global") {
      value.zero_();
      if (name == part + ".weight") value.select(1, 0).fill_(1);
    } else if (name == "mix_v") {
      value.fill_(1);  // nothing of the previous token is mixed in
    } else if (name == "r.weight") {
      value.zero_();
      share = 0.5;
    }
  }
  const Tensor x = at::randn({2, 130, kWidth}, at::kDouble) * 3;
  x.select(2, 0).fill_(1);
  Tensor expected = share * named["o.weight"].sum(1);
  if (named.contains("o.bias")) expected = expected + named["o.bias"];
  EXPECT_CLOSE(mixer->forward(x, {}, nullptr), expected.expand_as(x), 1e-10);
}

// |actual - expected| / |expected|, with a denominator of at least `largest`/100.
double distance(const Tensor& actual, const Tensor& expected, double largest) {
  const double length = expected.norm().item<double>();
  return (actual.to(at::kDouble) - expected).norm().item<double>() / std::max({length, 1e-2 * largest, 1e-30});
}

// The coefficient of `expected` in `actual`: 1 if they are equal, 0 if `actual` is zero, -1 if the sign is wrong.
// Components orthogonal to `expected` do not count.
double share_along(const Tensor& actual, const Tensor& expected) {
  return ((actual.to(at::kDouble) * expected).sum() / expected.square().sum()).item<double>();
}

// Bounds for a gradient: its distance() from the exact one, and |share_along() - 1|.
struct GradientBound {
  double distance, share = 0.1;
};

// Compares y and all gradients with `exact` on equal weights and inputs, which bfloat16 represents exactly, so that
// only the mixer's own rounding is left. Returns the exact y.
Tensor expect_gradients_near_in_bfloat16(Mixer& mixer, const Tensor& x, const Tensor& y, Mixer& exact,
                                         const GradientBound& bound) {
  copy_weights(exact, mixer);
  const Tensor wide_x = x.detach().to(at::kDouble).requires_grad_(true), wide_y = exact.forward(wide_x, {}, nullptr);
  const auto weights = weights_like({wide_y});
  const auto got = gradients({y}, weights, leaves(mixer, x)),
             wanted = gradients({wide_y}, weights, leaves(exact, wide_x));
  const auto names = exact.named_parameters().keys();
  double largest = 0;
  for (const Tensor& wide : wanted) largest = std::max(largest, wide.norm().item<double>());
  for (size_t i = 0; i < wanted.size(); ++i) {
    const std::string name = "gradient of " + (i < names.size() ? names[i] : "x");
    EXPECT_LE(distance(got[i], wanted[i], largest), bound.distance) << name;
    if (wanted[i].norm().item<double>() < 1e-9 * largest) continue;  // zero but for rounding
    EXPECT_NEAR(share_along(got[i], wanted[i]), 1, bound.share) << name;
  }
  return wide_y.detach();
}

// Float32 stays close to float64, gradients included. Bfloat16 stays as close as its eight bits allow: outputs entry by
// entry, gradients in their norm (they are sums of many rounded terms, so single entries say little).
TEST_P(Conformance, ShortTypesStayNear) {
  auto exact = make();
  auto mixer = std::dynamic_pointer_cast<Mixer>(make(at::kFloat));
  copy_weights(*mixer, *exact);
  const Tensor x = inputs(2, 150), x32 = x.detach().to(at::kFloat).requires_grad_(true);
  const Tensor y = exact->forward(x, {}, nullptr), y32 = mixer->forward(x32, {}, nullptr);
  EXPECT_CLOSE(y32, y, 1e-4);
  const auto weights = weights_like({y});
  const auto wanted = gradients({y}, weights, leaves(*exact, x));
  const auto got = gradients({y32}, weights, leaves(*mixer, x32));
  expect_gradients_close(got, wanted, 1e-4);
  mixer->to(at::kBFloat16);
  const Tensor x16 = x.detach().to(at::kBFloat16).requires_grad_(true), y16 = mixer->forward(x16, {}, nullptr);
  EXPECT_EQ(y16.scalar_type(), at::kBFloat16);
  EXPECT_CLOSE(y16, expect_gradients_near_in_bfloat16(*mixer, x16, y16, *exact, {.distance = 0.1}), 0.05);
}

// Bounds for gradients under autocast. They are wide for a few relu features: relu cuts off nearly all features of some
// tokens, so that the normaliser is as small as its rounding error, and these tokens dominate.
GradientBound autocast_bound(const Subject& subject) {
  const Json settings = parse_json(subject.settings, "example");
  const bool few_features = settings.value("feature_map", "") == "t2r" && settings.value("features", 64) < 8;
  return few_features ? GradientBound{.distance = 10, .share = 0.95} : GradientBound{.distance = 0.25};
}

// Training in bfloat16 is autocast over float32 weights. Calls without gradients may take other code paths.
TEST_P(Conformance, AutocastStaysNear) {
  auto exact = make(), short_weights = make(at::kBFloat16), mixer = make(at::kFloat);
  copy_weights(*short_weights, *exact);
  copy_weights(*mixer, *short_weights);
  const Tensor x32 = inputs(2, 150, at::kBFloat16).detach().to(at::kFloat).requires_grad_(true);
  Tensor y32, undifferentiated;
  {
    const Autocast autocast(at::kCPU, at::kBFloat16);
    y32 = mixer->forward(x32, {}, nullptr);
    const at::NoGradGuard no_grad;
    undifferentiated = mixer->forward(x32, {}, nullptr);
  }
  const Tensor right = expect_gradients_near_in_bfloat16(*mixer, x32, y32, *exact, autocast_bound(GetParam()));
  for (const Tensor& y : {y32, undifferentiated}) EXPECT_LE(distance(y, right, 0), 0.1);
}

// 3. Tokens after t do not change outputs up to t; decoding steps are equal bit for bit.
TEST_P(CausalConformance, IsCausal) {
  auto mixer = make();
  at::NoGradGuard no_grad;
  const Tensor x = at::randn({1, 80, kWidth}, at::kDouble);
  const Tensor y = mixer->forward(x, {}, nullptr);
  for (const int64_t t : {0, 15, 16, 40, 63, 64}) {
    Tensor other = x.clone();
    other.narrow(1, t + 1, 79 - t).normal_(0, 5);
    EXPECT_CLOSE(mixer->forward(other, {}, nullptr).narrow(1, 0, t + 1), y.narrow(1, 0, t + 1), 1e-11) << t;
  }
  SequenceState state = fresh(*mixer, 1, x), fork = state;
  for (int64_t t = 0; t < 5; ++t) {
    const Tensor once = mixer->forward(x.narrow(1, t, 1), {}, &state);
    EXPECT_TRUE(at::equal(once, mixer->forward(x.narrow(1, t, 1), {}, &fork)));
  }
}

// A bidirectional mechanism does look ahead.
TEST_P(BidirectionalConformance, LooksAhead) {
  auto mixer = make();
  const Tensor x = inputs(1, 6), y = mixer->forward(x, {}, nullptr);
  const Tensor dx = gradients({y.select(1, 2)}, weights_like({y.select(1, 2)}), {x})[0];
  const bool alone = parse_json(GetParam().settings, "example") == Json{{"window", 1}};  // each token sees only itself
  EXPECT_EQ(dx.select(1, 3).abs().max().item<double>() > 0, !alone);
}

// 4. Packed sequences give what each gives alone, empty ones included, with and without a state.
TEST_P(Conformance, PackedEqualsSeparate) {
  auto mixer = make();
  const std::vector<int64_t> bounds = {0, 1, 1, 30, 97, 97, 100};
  const Tensor x = inputs(1, 100);
  Batch batch;
  batch.cu_seqlens = at::tensor(bounds, at::kLong);
  std::vector<Tensor> parts;
  for (size_t n = 0; n + 1 < bounds.size(); ++n) {
    const int64_t length = bounds[n + 1] - bounds[n];
    if (length) parts.push_back(mixer->forward(x.narrow(1, bounds[n], length), {}, nullptr));
  }
  expect_same_with_gradients(*mixer, x, mixer->forward(x, batch, nullptr), at::cat(parts, 1), 1e-9);
}

// 6. Outputs and gradients of extreme inputs are finite and right.
TEST_P(Conformance, SurvivesExtremes) {
  auto mixer = make();
  for (const double scale : {1e-3, 1e3, 1e5}) {
    SCOPED_TRACE(concat("inputs times ", scale));
    const Tensor x = (at::randn({1, 70, kWidth}, at::kDouble) * scale).requires_grad_(true);
    const Tensor y = mixer->forward(x, {}, nullptr);
    EXPECT_CLOSE(y, mixer->reference(x), 1e-8);
    const Tensor dx = gradients({y}, weights_like({y}), {x})[0];
    EXPECT_TRUE(dx.isfinite().all().item<bool>());
  }
  const Tensor same = at::ones({1, 70, kWidth}, at::kDouble);
  EXPECT_CLOSE(mixer->forward(same, {}, nullptr), mixer->reference(same), 1e-9);
  EXPECT_EQ(mixer->forward(at::zeros({2, 0, kWidth}, at::kDouble), {}, nullptr).sizes(),
            (at::IntArrayRef{2, 0, kWidth}));
}

// Compares with finite differences, like torch.autograd.gradcheck, so that the definition's own gradients are checked
// too.
TEST_P(Conformance, GradientsAreFiniteDifferences) {
  auto mixer = make();
  const Tensor x = inputs(1, 9);
  const auto weights = weights_like({x});
  auto value = [&] { return (mixer->forward(x, {}, nullptr) * weights[0]).sum(); };
  const std::vector<Tensor> all = leaves(*mixer, x);
  const auto analytic = torch::autograd::grad({value()}, all, {}, {}, false, true);
  constexpr double kStep = 1e-5;
  for (size_t i = 0; i < all.size(); ++i) {
    const Tensor direction = at::randn_like(all[i]).detach();
    at::NoGradGuard no_grad;
    Tensor leaf = all[i];
    leaf.add_(direction, kStep);
    const double up = value().item<double>();
    leaf.sub_(direction, 2 * kStep);
    const double down = value().item<double>();
    leaf.add_(direction, kStep);
    const double along = analytic[i].defined() ? (analytic[i] * direction).sum().item<double>() : 0.0;
    EXPECT_NEAR((up - down) / (2 * kStep), along, 1e-5 * std::max(1.0, std::abs(along))) << "leaf " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Every, Conformance, ::testing::ValuesIn(testing::all_subjects()), testing::subject_name);
INSTANTIATE_TEST_SUITE_P(Every, CausalConformance, ::testing::ValuesIn(testing::subjects(true)), testing::subject_name);
INSTANTIATE_TEST_SUITE_P(Every, BidirectionalConformance, ::testing::ValuesIn(testing::subjects(false)),
                         testing::subject_name);
INSTANTIATE_TEST_SUITE_P(Every, Normalized, ::testing::ValuesIn(testing::normalized_subjects()), testing::subject_name);

}  // namespace
}  // namespace cortado
