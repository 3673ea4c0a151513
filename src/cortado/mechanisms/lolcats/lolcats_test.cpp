#include <gtest/gtest.h>

#include "cortado/mechanisms/lolcats/feature_mixer.h"
#include "cortado/mechanisms/lolcats/fused.h"
#include "cortado/mechanisms/registry.h"
#include "cortado/nn/feature_map.h"
#include "cortado/primitives/window_attention/op.h"
#include "cortado/testing/compare.h"
#include "cortado/testing/errors.h"
#include "cortado/testing/kernels.h"

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
  return lolcats({in.q, in.k, in.v, in.phi_q, in.phi_k, in.factor}, rule);
}

// Runs the rows as packed sequences.
Tensor run_packed(const Inputs& in, const LolcatsRule& rule) {
  const int64_t rows = in.q.size(0), tokens = in.q.size(1);
  const auto packed = [](const Tensor& x) { return x.flatten(0, 1).unsqueeze(0); };
  const Tensor bounds = at::arange(rows + 1, at::kLong) * tokens;
  return lolcats({packed(in.q), packed(in.k), packed(in.v), packed(in.phi_q), packed(in.phi_k), in.factor, bounds}, rule)
      .view({rows, tokens, in.factor.size(0), in.v.size(3)});
}

TEST(Lolcats, EveryMixtureAndLayoutEqualsItsDefinition) {
  for (const LolcatsLayout layout : kLayouts) {
    for (const LolcatsMixture mixture : kMixtures) {
      for (const auto& [tokens, window] : {std::pair{1, 1}, {9, 4}, {16, 4}, {17, 1}, {65, 16}, {30, 64}}) {
        const LolcatsRule rule{window, layout, mixture, tokens % 2 ? std::optional<double>(0.3) : std::nullopt};
        const Inputs in = random_inputs(tokens);
        const Tensor right = lolcats_reference(in.q, in.k, in.v, in.phi_q, in.phi_k, in.factor, rule);
        const auto weights = testing::weights_like({right});
        for (const auto form : {run, run_packed}) {
          const Tensor got = form(in, rule);
          EXPECT_CLOSE(got, right, 1e-10) << tokens << " " << window;
          testing::expect_gradients_close(testing::gradients({got}, weights, in.all()),
                                          testing::gradients({right}, weights, in.all()), 1e-9);
        }
      }
    }
  }
}

// While all keys are in the softmax part's reach it equals softmax attention, for any mixture and factor.
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

// Scores of ±1e4, for which e^s is infinite or 0: results and gradients are finite and right, in float32 too.
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
    EXPECT_CLOSE(lolcats({q, k, v, phi_q, phi_k, in.factor, bounds}, rule), at::cat(parts, 1), 1e-11);
  }
}

// One head of q, k and v with features of several heads: the dense form has as many heads as the widest input.
TEST(Lolcats, FeaturesMayHaveMoreHeads) {
  const Inputs in = random_inputs(32);
  const LolcatsRule rule{4, LolcatsLayout::kSliding, LolcatsMixture::kGated, {}, {}};
  const auto [first, keys] = lolcats_far(32, rule);
  const auto one = [](const Tensor& x) { return x.narrow(2, 0, 1); };
  const auto wide = [&](const Tensor& x) { return one(x).repeat_interleave(4, 2); };
  const Tensor q = one(in.q), k = one(in.k), v = one(in.v), far_q = in.phi_q.slice(1, first);
  const Tensor far_k = in.phi_k.narrow(1, 0, keys);
  const auto right = [&](const Tensor& phi_q, const Tensor& phi_k) {
    return lolcats_reference(wide(in.q), wide(in.k), wide(in.v), phi_q, phi_k, in.factor, rule);
  };
  EXPECT_CLOSE(lolcats_dense({q, k, v, one(far_q), far_k, in.factor}, rule), right(wide(in.phi_q), in.phi_k), 1e-10);
  EXPECT_CLOSE(lolcats_dense({q, k, v, far_q, one(far_k), in.factor}, rule), right(in.phi_q, wide(in.phi_k)), 1e-10);
}

// Dense sequences of whole blocks or with a partial block, with and without gradients of q, k and v, with features of
// the far part only.
TEST(Lolcats, DenseFormEqualsItsDefinition) {
  for (const LolcatsLayout layout : kLayouts) {
    for (const auto& [tokens, window] : {std::pair{12, 4}, {32, 4}, {33, 4}, {64, 16}, {9, 3}}) {
      const LolcatsRule rule{window, layout, LolcatsMixture::kGated, {}, {}};
      const auto [first, keys] = lolcats_far(tokens, rule);
      const Inputs wide = random_inputs(tokens);
      const Tensor right = lolcats_reference(wide.q, wide.k, wide.v, wide.phi_q, wide.phi_k, wide.factor, rule);
      const auto weights = testing::weights_like({right});
      const auto expected = testing::gradients({right}, weights, {wide.phi_q, wide.phi_k, wide.factor});
      for (const auto type : {at::kDouble, at::kFloat}) {
        const double tolerance = type == at::kDouble ? 1e-10 : 2e-5;
        for (const bool constant : {true, false}) {
          Inputs in = wide;
          for (Tensor* x : {&in.q, &in.k, &in.v}) *x = x->detach().to(type).requires_grad_(!constant);
          for (Tensor* x : {&in.phi_q, &in.phi_k, &in.factor}) *x = x->detach().to(type).requires_grad_(true);
          const Tensor got =
              lolcats_dense({in.q, in.k, in.v, in.phi_q.slice(1, first), in.phi_k.narrow(1, 0, keys), in.factor}, rule);
          EXPECT_CLOSE(got, right, tolerance) << tokens << " " << constant;
          const auto gradients = testing::gradients({got}, {weights[0].to(type)}, {in.phi_q, in.phi_k, in.factor});
          testing::expect_gradients_close(gradients, expected, 10 * tolerance);
        }
      }
    }
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

TEST(Lolcats, FeatureMapsEqualTheirDefinitions) {
  at::manual_seed(9);
  const Tensor x = at::randn({2, 5, 3, 4}, at::kDouble) * 3;
  for (const std::string& kind : head_feature_maps()) {
    HeadFeatureMap map(kind, 6, 3, 4);
    const at::NoGradGuard no_grad;
    map.to(at::kDouble);
    map.weight.copy_(at::randn({3, 4, 6}, at::kDouble));
    Tensor y = at::einsum("bthd,hdf->bthf", {x, map.weight});
    if (map.bias.defined()) y = y + map.bias.copy_(at::randn({3, 6}, at::kDouble));
    const auto softmax = [](const Tensor& z) { return z.exp() / z.exp().sum(-1, true); };
    Tensor right = y.clamp_min(0);
    if (kind == "lolcats") right = at::cat({softmax(y), softmax(-y)}, -1);
    if (kind == "hedgehog") right = softmax(at::cat({2 * y, -2 * y}, -1));
    if (kind == "hedgehog_exp") right = at::cat({(y - y.amax(-1, true)).exp(), (-y + y.amin(-1, true)).exp()}, -1);
    EXPECT_CLOSE(map.forward(x), right.clamp_min(1e-12), 1e-12) << kind;
    EXPECT_EQ(map.width(), right.size(3)) << kind;
  }
}

TEST(Lolcats, SaysWhatDoesNotFit) {
  const Inputs in = random_inputs(4);
  EXPECT_EQ(testing::error_of([&] { run(in, {0, LolcatsLayout::kSliding, LolcatsMixture::kPlain, {}}); }),
            "[lolcats] window must be at least 1, got 0");
  EXPECT_EQ(testing::error_of([] { value_of(lolcats_layouts(), "tk", "[lolcats] layout"); }),
            "[lolcats] layout must be \"sliding\" or \"terrace\", got \"tk\"");
  EXPECT_EQ(testing::error_of([] { value_of(lolcats_mixtures(), "none", "[lolcats] mixture"); }),
            "[lolcats] mixture must be \"lolcats\", \"gated\" or \"plain\", got \"none\"");
  EXPECT_THROW(lolcats({in.q, in.k, in.v, in.phi_q, in.phi_k, at::zeros({3})}, {}), InputError);
}

// Compares the kernels with ATen in float64: odd widths, and numbers so far apart that some features are below the
// least value. (For those the kernel's derivative treats the value as the least one, which is negligible at 1e-12.)
TEST(LolcatsKernels, FeaturesEqualTheirDefinition) {
  for (const int64_t width : {1, 7, 16, 64, 70}) {
    at::manual_seed(width);
    const Tensor y = (at::randn({2, 3, 65, width}) * 12).requires_grad_(true);
    const Tensor wide = y.detach().to(at::kDouble).requires_grad_(true);
    const Tensor got = lolcats_fused::features(y, kLeastFeature);
    const Tensor lost = lolcats_fused::features(at::full_like(y, NAN), kLeastFeature);
    EXPECT_TRUE(lost.isnan().all().item<bool>());
    const Tensor right = at::cat({at::softmax(wide, -1), at::softmax(-wide, -1)}, -1).clamp_min(kLeastFeature);
    EXPECT_CLOSE(got, right, 2e-6) << width;
    const auto weights = testing::weights_like({right});
    testing::expect_gradients_close(testing::gradients({got}, weights, {y}),
                                    testing::gradients({right}, weights, {wide}), 1e-5);
  }
}

TEST(LolcatsKernels, BlockSumsEqualTheirDefinition) {
  for (const int64_t blocks : {1, 2, 9}) {
    std::vector<Tensor> inputs = {at::randn({2, 5, blocks, 3, 4}).transpose(1, 3), at::randn({2, 3, blocks, 5, 4}),
                                  at::randn({2, 3, blocks, 5, 7})},
                        wide;
    for (Tensor& x : inputs) {
      x.requires_grad_(true);
      wide.push_back(x.detach().to(at::kDouble).requires_grad_(true));
    }
    const Tensor got = lolcats_fused::block_sums(inputs[0], inputs[1], inputs[2]);
    const Tensor right = at::matmul(wide[0], at::matmul(wide[1].transpose(3, 4), wide[2]).cumsum(2));
    EXPECT_CLOSE(got, right, 2e-6) << blocks;
    const auto weights = testing::weights_like({right});
    testing::expect_gradients_close(testing::gradients({got}, {weights[0].to(at::kFloat)}, inputs),
                                    testing::gradients({right}, weights, wide), 5e-6);
  }
}

TEST(LolcatsKernels, JoiningEqualsItsDefinition) {
  for (const LolcatsMixture mixture : kMixtures) {
    for (const int64_t width : {1, 7, 64}) {
      at::manual_seed(width);
      const auto normal = [](std::vector<int64_t> sizes) { return at::randn(sizes); };
      // The numbers of one head are contiguous, but tokens or heads may come first.
      std::vector<Tensor> inputs = {normal({2, 4, 70, width}).transpose(1, 2), normal({2, 70, 4}) + 1,
                                    normal({2, 4, 70}).transpose(1, 2), normal({2, 70, 4, width + 1}).abs(),
                                    normal({4})};
      inputs[3].select(3, width).narrow(1, 0, 5).zero_();  // no key has left the window yet
      inputs[3].narrow(1, 0, 5).zero_();
      std::vector<Tensor> wide;
      for (Tensor& x : inputs) {
        x.requires_grad_(true);
        wide.push_back(x.detach().to(at::kDouble).requires_grad_(true));
      }
      const Tensor got = lolcats_fused::join({inputs[0], inputs[1], inputs[2]}, inputs[3], inputs[4], mixture);
      const Tensor right = join_linear({wide[0], wide[1], wide[2]}, wide[3], wide[4], mixture);
      EXPECT_CLOSE(got, right, 2e-6) << width;
      const auto weights = testing::weights_like({right});
      testing::expect_gradients_close(testing::gradients({got}, weights, inputs),
                                      testing::gradients({right}, weights, wide), 2e-5);
    }
  }
}

// Inference with few tokens, which are processed one by one, and with tiles of them, on every instruction set.
TEST(LolcatsKernels, InferenceEqualsItsDefinition) {
  const testing::AnyIsa restore;
  const testing::Poisoned poisoned;
  for (const std::string& isa : available_isas()) {
    if (isa == "aten") continue;
    select_isa(isa);
    for (const auto& [tokens, width] :
         {std::pair{3, 1}, {4, 7}, {3, 31}, {1, 64}, {2, 129}, {5, 7}, {70, 64}, {37, 31}}) {
      SCOPED_TRACE(concat(isa, ", ", tokens, " tokens of ", width));
      at::manual_seed(width);
      const Tensor x = testing::awkward(at::randn({2, tokens, 4, 9}), width % 2), weight = at::randn({4, 9, width});
      const Tensor y = at::matmul(x.to(at::kDouble).transpose(1, 2), weight.to(at::kDouble)).transpose(1, 2);
      const Tensor phi = at::cat({at::softmax(y, -1), at::softmax(-y, -1)}, -1).clamp_min(kLeastFeature);
      EXPECT_CLOSE(lolcats_fused::mapped_features(x, weight, kLeastFeature), phi, 5e-6);
      const Tensor near = testing::awkward(at::randn({2, tokens, 4, width}), 1 - width % 2);
      const Tensor lse = at::randn({2, tokens, 4}) + 1, row_max = at::randn({2, tokens, 4}), factor = at::randn({4});
      Tensor sums = at::rand({2, 4, 2 * width, width + 1});
      sums[0].zero_();  // no key has left the window yet
      const Tensor far = at::matmul(phi.transpose(1, 2), sums.to(at::kDouble)).transpose(1, 2);
      const auto wide = [](const Tensor& z) { return z.to(at::kDouble); };
      for (const LolcatsMixture mixture : kMixtures) {
        const Tensor phi_q = testing::awkward(phi.to(at::kFloat), 1);
        const Tensor got = lolcats_fused::join_sums({near, lse, row_max}, phi_q, sums, factor, mixture);
        EXPECT_CLOSE(got, join_linear({wide(near), wide(lse), wide(row_max)}, far, wide(factor), mixture), 5e-6);
      }
    }
  }
}

}  // namespace
}  // namespace cortado::lolcats_test
