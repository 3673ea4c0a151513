// Rotary positions and their stretched angles: each against its formula in float64.
#include "cortado/nn/rotary/rotary.h"

#include <gtest/gtest.h>

#include <cmath>

#include "cortado/base/error.h"
#include "cortado/nn/batch.h"
#include "cortado/testing/compare.h"

namespace cortado::rotary_test {
namespace {

using testing::gradient_error;
using testing::relative_error;

Tensor random(at::IntArrayRef shape) { return at::randn(shape, at::kDouble); }

TEST(Rotary, TurnsPairsOfHalvesByPosition) {
  const Tensor x = random({1, 3, 2, 6});
  const Tensor positions = at::tensor({0, 5, 1000000}, at::kLong).unsqueeze(0);
  const Tensor y = apply_rotary(x, positions, 100.0);
  for (int64_t t = 0; t < 3; ++t) {
    for (int64_t i = 0; i < 3; ++i) {
      const double angle = positions[0][t].item<double>() * std::pow(100.0, -2.0 * static_cast<double>(i) / 6);
      for (int64_t h = 0; h < 2; ++h) {
        const double a = x[0][t][h][i].item<double>(), b = x[0][t][h][i + 3].item<double>();
        EXPECT_NEAR(y[0][t][h][i].item<double>(), a * std::cos(angle) - b * std::sin(angle), 1e-8);
        EXPECT_NEAR(y[0][t][h][i + 3].item<double>(), b * std::cos(angle) + a * std::sin(angle), 1e-8);
      }
    }
  }
  EXPECT_LT(gradient_error([&](const Tensor& v) { return apply_rotary(v, positions, 100.0); }, x), 1e-8);
  // float32 is as accurate at large positions as at small ones: the angle is not rounded to float32.
  EXPECT_LT(relative_error(apply_rotary(x.to(at::kFloat), positions, 100.0).to(at::kDouble), y), 1e-6);
  EXPECT_THROW(apply_rotary(random({1, 3, 2, 5}), positions, 100.0), InputError);
}

TEST(Rotary, KnowsLlama3ByItsFactors) {
  constexpr int64_t kPairs = 64;
  std::vector<double> factors;
  for (int64_t i = 0; i < kPairs; ++i) {
    const double turns = std::pow(5e5, -static_cast<double>(i) / kPairs) * 8192 / (2 * M_PI);
    const double kept = std::clamp((turns - 1) / 3, 0.0, 1.0);
    factors.push_back(static_cast<float>(1 / (kept + (1 - kept) / 32)));
  }
  const auto known = llama3_scaling(factors, 5e5);
  ASSERT_TRUE(known.has_value());
  EXPECT_EQ(known->type, RotaryScaling::Type::kLlama3);
  EXPECT_EQ(known->factor, 32);
  EXPECT_EQ(known->original_context, 8192);
  for (const double wrong : {31.92, -1.0, 0.0, std::nan(""), HUGE_VAL}) {
    auto others = factors;
    others[60] = wrong;
    EXPECT_FALSE(llama3_scaling(others, 5e5).has_value()) << wrong;
  }
  EXPECT_FALSE(llama3_scaling({}, 5e5).has_value());
  EXPECT_FALSE(llama3_scaling({1, 1}, 5e5).has_value());
}

TEST(Rotary, StretchesItsAngles) {
  const Tensor positions = at::tensor({1}, at::kLong).unsqueeze(0);
  const auto angles = [&](const RotaryScaling& scaling) {
    const RotaryTable table = rotary_table(positions, 8, Rotary(1e4, scaling), at::kDouble);
    return at::atan2(table.sin, table.cos).flatten();
  };
  const auto scaling = [](const char* json) { return RotaryScaling::from_json(parse_json(json, "test"), "test"); };
  const Tensor plain = at::pow(10.0, -at::arange(4, at::kDouble));
  EXPECT_LT(relative_error(angles({}), plain), 1e-12);
  EXPECT_LT(relative_error(angles(scaling(R"({"type": "linear", "factor": 4})")), plain / 4), 1e-12);
  const Tensor factors = at::tensor({1.0, 2.0, 3.0, 4.0}, at::kDouble);
  EXPECT_LT(relative_error(angles(scaling(R"({"type": "factors", "factors": [1, 2, 3, 4]})")), plain / factors), 1e-12);
  EXPECT_THROW(angles(scaling(R"({"type": "factors", "factors": [1, 2]})")), InputError);
  EXPECT_FALSE(llama3_scaling({1, 2, 3, 4}, 1e4).has_value());
  // Wavelengths 2π, 63, 628, 6283 in a context of 600: turns 95, 9.5, 0.95, 0.095; kept above 4, a fifth below 0.5.
  const RotaryScaling llama = scaling(R"({"type": "llama3", "factor": 5, "low_freq_factor": 0.5, "high_freq_factor": 4,
                  "original_context": 600})");
  const double kept = (600 * 0.01 / (2 * M_PI) - 0.5) / 3.5;
  const Tensor expected = at::tensor({1.0, 0.1, 0.01 * (kept + (1 - kept) / 5), 0.001 / 5}, at::kDouble);
  EXPECT_LT(relative_error(angles(llama), expected), 1e-12);
  EXPECT_EQ(RotaryScaling::from_json(llama.to_json(), "test").to_json(), llama.to_json());
  for (const char* bad :
       {R"({"type": "dynamic", "factor": 2})", R"({"type": "linear"})", R"({"type": "linear", "factor": 0})",
        R"({"type": "factors", "factors": [1, 0]})", R"({"type": "linear", "factor": 1, "low": 2})",
        R"({"type": "llama3", "factor": 2, "low_freq_factor": 4})", R"({"type": "yarn", "factor": 2})",
        R"({"type": "yarn", "factor": 0.5, "original_context": 9})",
        R"({"type": "yarn", "factor": 2, "original_context": 9, "beta_fast": 0.5})",
        R"({"type": "yarn", "factor": 2, "original_context": 9, "attention_factor": 0})",
        R"({"type": "longrope", "long_factors": [1], "original_context": 9, "context": 9})",
        R"({"type": "longrope", "short_factors": [1, 2], "long_factors": [1], "original_context": 9,
                              "context": 9})",
        R"({"type": "longrope", "short_factors": [1], "long_factors": [1], "original_context": 1,
                              "context": 9})"}) {
    EXPECT_THROW(scaling(bad), InputError) << bad;
  }
  EXPECT_THROW(
      rotary_frequencies(8, Rotary(1, scaling(R"({"type": "yarn", "factor": 2, "original_context": 9})")), at::kCPU),
      InputError);
}

// Against transformers' formulas (ROPE_INIT_FUNCTIONS of 5.23), evaluated in float64 for 16 channels and theta 10,000.
TEST(Rotary, StretchesAsTransformers) {
  struct Case {
    const char* json;
    std::vector<double> frequencies;
    double attention_factor;
  };
  const std::string lists = R"({"type": "longrope", "short_factors": [1, 1.125, 1.25, 1.375, 1.5, 1.625, 1.75, 1.875],
      "long_factors": [2, 5, 8, 11, 14, 17, 20, 23], "original_context": 128, )";
  const std::string short_lists = lists + R"("context": 128, "attention_factor": 1.1338934190276817})",
                    long_lists = lists + R"("context": 512})";
  const std::vector<Case> cases = {
      {R"({"type": "yarn", "factor": 4, "original_context": 2048})",
       {1.0, 0.31622776601683794, 0.1, 0.02569350598886808, 0.00625, 0.0013834964763236657, 0.00025,
        7.905694150420948e-05},
       1.138629436111989},
      {R"({"type": "yarn", "factor": 4, "original_context": 2048, "beta_fast": 16, "beta_slow": 2, "truncate": false})",
       {1.0, 0.31622776601683794, 0.1, 0.026607496952192288, 0.00426161920188239, 0.0007905694150420947, 0.00025,
        7.905694150420948e-05},
       1.138629436111989},
      {R"({"type": "yarn", "factor": 4, "original_context": 8})",
       {1.0, 0.07905694150420949, 0.025, 0.007905694150420948, 0.0025, 0.0007905694150420947, 0.00025,
        7.905694150420948e-05},
       1.138629436111989},
      {R"({"type": "yarn", "factor": 4, "original_context": 1099511627776})",
       {0.25, 0.07905694150420949, 0.025, 0.007905694150420948, 0.0025, 0.0007905694150420947, 0.00025,
        7.905694150420948e-05},
       1.138629436111989},
      {short_lists.c_str(),
       {1.0, 0.2810913475705226, 0.08, 0.02299838298304276, 0.006666666666666667, 0.0019460170216420796,
        0.0005714285714285715, 0.00016865480854231355},
       1.1338934190276817},
      {long_lists.c_str(),
       {0.5, 0.06324555320336758, 0.0125, 0.002874797872880345, 0.0007142857142857143, 0.0001860163329510811, 5e-05,
        1.3749033305079909e-05},
       1.1338934190276817}};
  for (const auto& [json, frequencies, attention_factor] : cases) {
    const RotaryScaling scaling = RotaryScaling::from_json(parse_json(json, "test"), "test");
    const Tensor right = at::tensor(frequencies, at::kDouble);
    EXPECT_LT(relative_error(rotary_frequencies(16, Rotary(1e4, scaling), at::kCPU), right), 1e-14) << json;
    EXPECT_NEAR(scaling.attention_factor, attention_factor, 1e-14) << json;
    EXPECT_EQ(RotaryScaling::from_json(scaling.to_json(), "test"), scaling) << json;
    const Tensor positions = at::tensor({7}, at::kLong).unsqueeze(0);
    const RotaryTable table = rotary_table(positions, 16, Rotary(1e4, scaling), at::kDouble);
    EXPECT_LT(relative_error(table.cos.flatten(), (right * 7).cos() * attention_factor), 1e-13) << json;
    EXPECT_LT(relative_error(table.sin.flatten(), (right * 7).sin() * attention_factor), 1e-13) << json;
  }
}

TEST(Rotary, SharesRowsOfADenseBatch) {
  const Tensor x = random({3, 4, 1, 2});
  const Tensor positions = Batch{}.positions(x);
  EXPECT_EQ(rotary_table(positions, 2, 1e4).cos.size(0), 1);
  EXPECT_TRUE(apply_rotary(x, positions, 1e4).equal(apply_rotary(x, positions.contiguous(), 1e4)));
}

TEST(Rotary, KeepsItsLastTableUnlessItIsLarge) {
  const auto twice_the_same = [](int64_t count) {
    const Tensor positions = at::arange(count, at::kLong).unsqueeze(0).contiguous();
    const Tensor first = rotary_table(positions.clone(), 8, 1e4).cos;
    return first.is_same(rotary_table(positions, 8, 1e4).cos);
  };
  EXPECT_TRUE(twice_the_same(100));
  EXPECT_FALSE(twice_the_same((int64_t{1} << 20) + 1));
  for (int theta = 2; theta < 200; ++theta) {  // more sets of frequencies than a thread keeps
    const Tensor table = rotary_table(at::ones({1, 1}, at::kLong), 4, theta, at::kDouble).cos;
    EXPECT_NEAR(table.flatten()[1].item<double>(), std::cos(1 / std::sqrt(theta)), 1e-12);
  }
}

}  // namespace
}  // namespace cortado::rotary_test
