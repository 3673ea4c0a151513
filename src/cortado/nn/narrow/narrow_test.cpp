// Narrow weights: the kernels on every instruction set against their definition in float64, over odd sizes.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "cortado/nn/linear.h"
#include "cortado/nn/linear/op.h"
#include "cortado/nn/matmul.h"
#include "cortado/nn/narrow/weight.h"
#include "cortado/testing/errors.h"
#include "cortado/testing/kernels.h"

namespace cortado::narrow_test {
namespace {

using at::Tensor;
using testing::AnyIsa;
using testing::Poisoned;

Tensor relative_error(const Tensor& got, const Tensor& right) {
  return (got.to(at::kDouble) - right).abs().max() / right.abs().max().clamp_min(1e-30);
}

void expect_refused(const std::function<void()>& act, const std::string& part) {
  const std::string message = testing::error_of(act);
  EXPECT_NE(message.find(part), std::string::npos) << message;
}

// Runs check(isa) with the kernels of each instruction set.
void on_every_isa(const std::function<void(const std::string&)>& check) {
  const AnyIsa restore;
  for (const auto& isa : available_isas()) {
    select_isa(isa);
    check(isa);
  }
}

// x rounded to int8 in groups of 64, written from the definition: float32 scales, values to the nearest.
Tensor rounded(const Tensor& x) {
  std::vector<Tensor> parts;
  for (const Tensor& group : x.split(64, -1)) {
    const Tensor most = group.abs().amax(-1, true), inverse = (127 / most).masked_fill(most == 0, 0);
    parts.push_back((group * inverse).round().to(at::kDouble) * (most / 127).to(at::kDouble));
  }
  return at::cat(parts, -1);
}

struct Sizes {
  int64_t rows, in, out;
};
const std::vector<Sizes> kSizes = {{1, 64, 32},   {1, 1, 1},    {2, 63, 33},   {3, 65, 31},
                                   {4, 200, 100}, {5, 128, 70}, {6, 130, 64},  {7, 64, 1},
                                   {13, 576, 96}, {96, 64, 40}, {97, 190, 65}, {200, 70, 100}};

class NarrowWeights : public ::testing::TestWithParam<int> {
 protected:
  NarrowWeight make(int64_t out, int64_t in) const { return {GetParam(), out, in}; }
  NarrowWeight packed(const Tensor& w) const {
    NarrowWeight weight = make(w.size(0), w.size(1));
    weight.pack(w);
    return weight;
  }
};
INSTANTIATE_TEST_SUITE_P(Bits, NarrowWeights, ::testing::Values(8, 4));

TEST_P(NarrowWeights, MultiplyOnEveryInstructionSet) {
  const Poisoned poisoned;
  for (const auto& [rows, in, out] : kSizes) {
    const Tensor w = at::randn({out, in}), x = at::randn({rows, in}) * 3, bias = at::randn({out});
    const NarrowWeight weight = packed(w);
    const Tensor right = at::linear(rounded(x), weight.unpacked().to(at::kDouble), bias.to(at::kDouble));
    on_every_isa([&](const std::string& isa) {
      const Tensor y = weight.multiply(x, bias);
      EXPECT_LE(relative_error(y, right).item<double>(), 3e-6) << isa << " " << rows << " " << in << " " << out;
      EXPECT_EQ(y.sizes(), at::IntArrayRef({rows, out}));
    });
  }
}

// The largest sums within a group.
TEST_P(NarrowWeights, HoldTheLargestSums) {
  for (const double sign : {1.0, -1.0}) {
    Tensor w = at::full({33, 128}, sign);
    w.select(1, 5).fill_(-sign);  // so that all others are the largest value, or the least
    w.select(1, 77).fill_(-sign);
    const NarrowWeight weight = packed(w);
    const Tensor x = at::cat({at::ones({3, 128}), at::full({3, 128}, -1)});
    const Tensor right = at::linear(rounded(x), weight.unpacked().to(at::kDouble));
    on_every_isa([&](const std::string& isa) {
      EXPECT_LE(relative_error(weight.multiply(x, {}), right).item<double>(), 3e-6) << isa;
      EXPECT_TRUE(weight.multiply(x[0], {}).equal(weight.multiply(x, {})[0])) << isa;
    });
  }
}

TEST(Int8Weight, RoundsToATwoHundredFiftyFourthOfAGroupsLargest) {
  const Tensor w = at::randn({70, 200}) * at::logspace(-20, 20, 70).unsqueeze(1);
  NarrowWeight weight(8, 70, 200);
  weight.pack(w);
  for (const auto& [got, right] : {std::pair{weight.unpacked().split(64, 1), w.split(64, 1)}}) {
    for (size_t g = 0; g < got.size(); ++g) {
      const Tensor bound = right[g].abs().amax(1, true) * (0.5 / 127 * 1.01);  // a scale is rounded up by at most 1 %
      EXPECT_TRUE(((got[g] - right[g]).abs() <= bound).all().item<bool>()) << g;
    }
  }
}

// Accurate to half of a group's 15 steps, plus float16 rounding of the step and the least number.
TEST(Int4Weight, RoundsToAThirtiethOfAGroupsRange) {
  const Tensor w = (at::randn({70, 200}) + at::randn({70, 1})) * at::logspace(-2, 4, 70).unsqueeze(1);
  NarrowWeight weight(4, 70, 200);
  weight.pack(w);
  const auto got = weight.unpacked().split(32, 1), right = w.split(32, 1);
  for (size_t g = 0; g < got.size(); ++g) {
    const auto [least, largest] = right[g].aminmax(1, true);
    const Tensor half = (largest - least) / 30, bound = half * (1 + 30.0 / 2048) + least.abs() / 2048;
    EXPECT_TRUE(((got[g] - right[g]).abs() <= bound).all().item<bool>()) << g;
  }
}

// 32 numbers d q + m, d and m in float16: ggml's Q4_1 has the first and the last q in each, Q4_0 (m = -8 d) need not.
TEST(Int4Weight, KeepsWhatIsOfFourBits) {
  const Tensor d = (at::rand({40, 6, 1}) * 0.01 + 1e-3).to(at::kHalf).to(at::kFloat);
  for (const bool all : {true, false}) {
    Tensor q = at::randint(0, all ? 16 : 13, {40, 6, 32}, at::kFloat), m = -8 * d;
    if (all) {
      q.select(2, 3).fill_(0);
      q.select(2, 17).fill_(15);
      m = (at::randn({40, 6, 1}) * 0.1).to(at::kHalf).to(at::kFloat);
    }
    const Tensor w = (d * q + m).flatten(1);
    NarrowWeight weight(4, 40, 192);
    weight.pack(w);
    EXPECT_TRUE(!all || weight.unpacked().equal(w));
    const Tensor error = (weight.unpacked() - w).unflatten(1, {6, 32}).abs() / d;
    EXPECT_LT(error.amax().item<double>(), 8.0 / 2048) << "of a step: what float16 rounds of the least number";
  }
}

// Numbers d (q - 8) as ggml's Q4_0 makes them: its largest number is -8 d, d of either sign.
Tensor centred(int64_t out, int64_t in) {
  const Tensor d = ((at::rand({out, in / 32, 1}) - 0.5) * 0.01).to(at::kHalf).to(at::kFloat);
  Tensor q = at::randint(0, 16, {out, in / 32, 32}, at::kFloat);
  q.select(2, 9).fill_(0);
  return (d * (q - 8)).flatten(1);
}

TEST(CentredWeight, KeepsQ4_0ExactlyInFourAndAHalfBits) {
  Tensor w = centred(64, 192);
  w[5].zero_();
  NarrowWeight weight(4, 64, 192), other(4, 64, 192);
  weight.pack(w);
  EXPECT_TRUE(weight.unpacked().equal(w));
  EXPECT_EQ(weight.bytes() * 8, 64 * 192 * 4 + 64 * 6 * 16);
  w[63][191] += 1e-3;  // one number that is on no grid
  other.pack(w);
  EXPECT_EQ(other.bytes() * 8, 64 * 192 * 5);
  other.pack(centred(64, 192));
  EXPECT_EQ(other.bytes(), weight.bytes()) << "each time it is packed";
}

TEST(CentredWeight, MultipliesOnEveryInstructionSet) {
  const Poisoned poisoned;
  for (const int64_t rows : {1, 2, 5, 6, 13, 100}) {
    const Tensor w = centred(70, 224), x = at::randn({rows, 224}) * 3 + 1;
    NarrowWeight weight(4, 70, 224);
    weight.pack(w);
    const Tensor right = at::linear(rounded(x), w.to(at::kDouble));
    on_every_isa([&](const std::string& isa) {
      EXPECT_LE(relative_error(weight.multiply(x, {}), right).item<double>(), 3e-6) << isa << " " << rows;
    });
  }
}

// Numbers d scale (q - 32) as ggml's Q6_K makes them: the largest scale of 256 numbers is -128.
Tensor of_six_bits(int64_t out, int64_t in) {
  const Tensor d = ((at::rand({out, in / 256, 1, 1}) - 0.5) * 1e-3).to(at::kHalf).to(at::kFloat);
  Tensor scale = at::randint(-127, 128, {out, in / 256, 16, 1}, at::kFloat);
  scale.select(2, 5).fill_(-128);
  return (d * scale * (at::randint(0, 64, {out, in / 256, 16, 16}, at::kFloat) - 32)).flatten(1);
}

TEST(SixBitWeight, KeepsQ6KExactly) {
  Tensor w = of_six_bits(70, 512);
  w[3].zero_();
  w[4].narrow(0, 16, 16).zero_();
  NarrowWeight weight(8, 70, 512, /*or_six=*/true);
  weight.pack(w);
  EXPECT_TRUE(weight.unpacked().equal(w));
  EXPECT_EQ(weight.bytes(), 96 * 512 * 6 / 8 + 96 * 32 + 96 * 2 * 2);
  NarrowWeight again(8, 70, 512, /*or_six=*/true);
  const auto parts = weight.parts();
  again.assemble({parts.begin(), parts.end()});
  EXPECT_TRUE(again.unpacked().equal(w));
  weight.pack(at::randn({70, 512}));  // no such numbers: 8 bits
  EXPECT_GT(weight.bytes(), 96 * 512);
}

TEST(SixBitWeight, MultipliesOnEveryInstructionSet) {
  const Poisoned poisoned;
  for (const int64_t rows : {1, 3, 4, 9}) {
    const Tensor w = of_six_bits(70, 512), x = at::randn({rows, 512}) * 3 + 1, bias = at::randn({70});
    NarrowWeight weight(8, 70, 512, /*or_six=*/true);
    weight.pack(w);
    const Tensor right = at::linear(rounded(x), w.to(at::kDouble), bias.to(at::kDouble));
    on_every_isa([&](const std::string& isa) {
      const Tensor y = weight.multiply(x, bias);
      EXPECT_LE(relative_error(y, right).item<double>(), 3e-6) << isa << " " << rows;
      EXPECT_TRUE(isa == "aten" || weight.multiply(x[0], bias).equal(y[0])) << isa;
    });
  }
}

TEST_P(NarrowWeights, ARowDoesNotDependOnTheRowsBesideItNorOnThreads) {
  const NarrowWeight weight = packed(at::randn({100, 150}));
  const Tensor x = at::randn({233, 150});
  const int threads = at::get_num_threads();
  const Tensor all = weight.multiply(x, {});
  for (const int n : {1, 3}) {
    at::set_num_threads(n);
    EXPECT_TRUE(weight.multiply(x, {}).equal(all)) << n << " threads";
  }
  at::set_num_threads(threads);
  for (const int64_t count : {1, 2, 5, 17}) {
    EXPECT_TRUE(weight.multiply(x.narrow(0, 40, count), {}).equal(all.narrow(0, 40, count))) << count << " rows";
  }
}

TEST_P(NarrowWeights, SeveralAtOnceAreEachByItself) {
  const Tensor x = at::randn({2, 9, 96}), bias = at::randn({40});
  const NarrowWeight a = packed(at::randn({40, 96})), b = packed(at::randn({7, 96})), c = packed(at::randn({65, 96}));
  on_every_isa([&](const std::string& isa) {
    const auto all = NarrowWeight::multiply(x, {&a, &b, &c}, {bias, std::nullopt, std::nullopt});
    EXPECT_TRUE(all[0].equal(a.multiply(x, bias))) << isa;
    EXPECT_TRUE(all[1].equal(b.multiply(x, {}))) << isa;
    EXPECT_TRUE(all[2].equal(c.multiply(x, {}))) << isa;
  });
}

TEST_P(NarrowWeights, ZerosAndWhatIsNotFinite) {
  const NarrowWeight weight = packed(at::zeros({33, 130}));
  const double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
  on_every_isa([&](const std::string& isa) {
    EXPECT_TRUE(weight.multiply(at::randn({3, 130}), {}).eq(0).all().item<bool>()) << isa;
    for (const double bad : {nan, inf, -inf}) {
      Tensor x = at::zeros({3, 130});
      x[1][129] = bad;
      const Tensor finite = weight.multiply(x, {}).isfinite();
      EXPECT_TRUE(finite[0].all().item<bool>() && finite[2].all().item<bool>()) << isa << " " << bad;
      EXPECT_FALSE(finite[1].any().item<bool>()) << isa << " " << bad;
    }
  });
}

TEST_P(NarrowWeights, TakeOtherTypesAndLayouts) {
  const Tensor w = at::randn({50, 96});
  const NarrowWeight weight = packed(w), turned = packed(w.t().contiguous().t());
  EXPECT_TRUE(turned.unpacked().equal(weight.unpacked()));
  const Tensor x = at::randn({2, 3, 96}).to(at::kBFloat16), y = weight.multiply(x, {});
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(y.equal(weight.multiply(x.to(at::kFloat), {}).to(at::kBFloat16)));
  const Tensor gaps = testing::awkward(x.to(at::kFloat), 1);
  EXPECT_TRUE(weight.multiply(gaps, {}).equal(weight.multiply(gaps.contiguous(), {})));
  const Tensor indices = at::tensor({49, 0, 7}, at::kLong);
  EXPECT_TRUE(weight.rows(indices, at::kFloat).equal(weight.unpacked().index_select(0, indices)));
}

TEST_P(NarrowWeights, Refuse) {
  NarrowWeight weight = make(8, 16);
  expect_refused([&] { weight.pack(at::zeros({16, 8})); }, "[8, 16]");
  expect_refused([&] { weight.multiply(at::zeros({1, 17}), {}); }, "16");
  expect_refused([&] { weight.multiply(at::zeros({1, 16}).requires_grad_(), {}); }, "inference");
  expect_refused([&] { weight.rows(at::full({1}, 8, at::kLong), at::kFloat); }, "no row 8 of 8");
  expect_refused([&] { weight_format_of("int5"); }, "int8");
}

TEST(Int4Weight, NotAtOnceWithEight) {
  NarrowWeight four(4, 8, 16), eight(8, 8, 16);
  expect_refused([&] { NarrowWeight::multiply(at::zeros({1, 16}), {&four, &eight}, {{}, {}}); }, "8 and of 4 bits");
}

TEST(Int4Weight, AGroupOfOneNumberKeepsIt) {
  for (const double number : {0.0, 0.5, -3.0, 1e-38}) {
    const Tensor w = at::full({3, 40}, number, at::kFloat);
    NarrowWeight weight(4, 3, 40);
    weight.pack(w);
    EXPECT_LT((weight.unpacked() - w).abs().amax().item<double>(), 1e-30) << number;
  }
}

TEST(Int4Weight, RefusesWhatFloat16CannotHold) {
  NarrowWeight weight(4, 8, 16);
  for (const double bad : {7e4, -7e4, std::nan(""), std::numeric_limits<double>::infinity()}) {
    expect_refused([&] { weight.pack(at::full({8, 16}, bad)); }, "finite numbers up to 65504");
  }
}

TEST(ShortLinear, OnEveryInstructionSet) {
  const Poisoned poisoned;
  for (const auto type : {at::kBFloat16, at::kHalf, at::kFloat}) {
    for (const auto& [rows, in, out] : kSizes) {
      const Tensor w = at::randn({out, in}).to(type), x = at::randn({rows, in}), bias = at::randn({out});
      const Tensor right = at::linear(x.to(at::kDouble), w.to(at::kDouble), bias.to(at::kDouble));
      on_every_isa([&](const std::string& isa) {
        const Tensor y = linear_map(x, w, bias);
        EXPECT_EQ(y.scalar_type(), at::kFloat);
        EXPECT_LE(relative_error(y, right).item<double>(), 2e-6) << isa << " " << rows << " " << in << " " << out;
      });
    }
  }
}

TEST(FewRows, OnlyWhereThereIsNothingToDifferentiate) {
  const Tensor w = at::randn({40, 30}), x = at::randn({1, 30});
  EXPECT_TRUE(few_rows_linear_takes(x, w, {}));
  EXPECT_FALSE(few_rows_linear_takes(at::randn({3, 30}), w, {}));
  EXPECT_FALSE(few_rows_linear_takes(x.to(at::kDouble), w, {}));
  EXPECT_FALSE(few_rows_linear_takes(x, w.t().contiguous().t(), {}));
  EXPECT_FALSE(few_rows_linear_takes(x, w.clone().requires_grad_(), {}));
  EXPECT_FALSE(few_rows_linear_takes(x, w, at::randn({40}).requires_grad_()));
  EXPECT_TRUE(linear_map(x.clone().requires_grad_(), w, {}).requires_grad());
}

// While RowsApart is active a row's result does not depend on the other rows.
TEST(FewRows, ApartARowIsWhatItIsAlone) {
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const Tensor w = at::randn({50, 70}).to(type), x = at::randn({64, 70});
    EXPECT_FALSE(few_rows_linear_takes(x, w, {}));
    const RowsApart apart;
    const Tensor all = linear_map(x, w, {});
    for (int64_t row = 0; row < 64; ++row) {
      EXPECT_TRUE(at::equal(linear_map(x.narrow(0, row, 1), w, {}), all.narrow(0, row, 1))) << row;
    }
    EXPECT_FALSE(few_rows_linear_takes(at::randn({65, 70}), w, {}));
  }
  EXPECT_FALSE(few_rows_linear_takes(at::randn({3, 70}), at::randn({50, 70}), {})) << "it has ended";
}

TEST(ShortLinear, ThreadsChangeNothing) {
  const Tensor w = at::randn({1000, 70}).to(at::kBFloat16), x = at::randn({3, 70});
  const int threads = at::get_num_threads();
  const Tensor all = linear_map(x, w, {});
  for (const int n : {1, 3}) {
    at::set_num_threads(n);
    EXPECT_TRUE(linear_map(x, w, {}).equal(all)) << n;
  }
  at::set_num_threads(threads);
}

TEST(MatrixModule, ChangesItsFormat) {
  const Tensor x = at::randn({4, 80});
  for (const auto& [format, most] : {std::pair{WeightFormat::kBFloat16, 0.02},
                                     {WeightFormat::kFloat16, 0.02},
                                     {WeightFormat::kInt8, 0.02},
                                     {WeightFormat::kInt4, 0.1}}) {
    Linear linear(80, 48, true);
    const at::NoGradGuard no_grad;
    const Tensor right = linear.forward(x), values = linear.weight.clone();
    const int64_t bytes = linear.weight_bytes();
    linear.set_format(format, true);
    EXPECT_LE(relative_error(linear.forward(x), right.to(at::kDouble)).item<double>(), most);
    EXPECT_LT(linear.weight_bytes(), 0.6 * static_cast<double>(bytes));
    EXPECT_EQ(linear.parameters()[0].sizes(), values.sizes());
    const Tensor before = linear.forward(x);
    linear.assign(values);
    EXPECT_TRUE(linear.forward(x).equal(before));
  }
}

}  // namespace
}  // namespace cortado::narrow_test
