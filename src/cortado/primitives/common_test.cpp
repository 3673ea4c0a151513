#include "cortado/primitives/common.h"

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>

#include "cortado/testing/errors.h"

namespace cortado {
namespace {

using testing::error_of;
using testing::kNoError;

TEST(Common, ShapeErrorsNameWhatWasExpected) {
  EXPECT_EQ(shape_text(std::vector<c10::SymInt>{2, -1, 4}), "[2, *, 4]");
  const Tensor x = at::zeros({2, 15, 4, 64});
  EXPECT_EQ(error_of([&] { expect_shape("op", "v", x, {2, 16, 4, -1}); }),
            "[op] expected v of shape [2, 16, 4, *], got [2, 15, 4, 64]");
  EXPECT_NE(error_of([&] { expect_shape("op", "v", x, {2, 15, 4}); }), kNoError);
  EXPECT_EQ(error_of([&] { expect_shape("op", "v", x, {-1, 15, -1, 64}); }), kNoError);
  EXPECT_EQ(error_of([&] { expect_shape("op", "v", at::zeros({0, 0, 2, 3}), {-1, -1, -1, -1}); }), kNoError);
  EXPECT_EQ(error_of([&] { expect_shape("op", "v", at::zeros({1, 2, 0, 3}), {-1, -1, -1, -1}); }),
            "[op] v has a size of 0: [1, 2, 0, 3]; only batch and time may be empty");
}

TEST(Common, Heads) {
  EXPECT_EQ(common_heads("op", {{"k", 2}, {"v", 4}, {"g", 1}}), 4);
  EXPECT_EQ(error_of([] { common_heads("op", {{"k", 3}, {"v", 4}}); }),
            "[op] the heads of k (3) must divide the largest head count, 4");
  EXPECT_EQ(output_heads("op", 2, 4), 4);
  EXPECT_EQ(output_heads("op", 8, 4), 8);
  EXPECT_NE(error_of([] { output_heads("op", 3, 4); }), kNoError);
  const Tensor x = at::arange(6, at::kDouble).view({1, 1, 3, 2});
  EXPECT_TRUE(expand_heads(x, 6).equal(x.repeat_interleave(2, 2)));
  EXPECT_TRUE(sum_heads(expand_heads(x, 6), 3).equal(2 * x));
}

TEST(Common, AccumulatesInTheWidestNeeded) {
  const Tensor half = at::zeros({1}, at::kBFloat16), full = at::zeros({1}), twice = at::zeros({1}, at::kDouble);
  EXPECT_EQ(accumulation_type({half, full, std::nullopt, Tensor()}), at::kFloat);
  EXPECT_EQ(accumulation_type({half, std::nullopt, twice}), at::kDouble);
}

TEST(Common, BoundsOfPackedSequences) {
  EXPECT_EQ(sequence_bounds("op", at::tensor({0, 2, 2, 5}, at::kInt), 5), (std::vector<int64_t>{0, 2, 2, 5}));
  const auto bounds = [](std::vector<int64_t> list) {
    return error_of([&] { sequence_bounds("op", at::tensor(list), 5); });
  };
  EXPECT_EQ(bounds({1, 5}), "[op] cu_seqlens must start with 0");
  EXPECT_EQ(bounds({0, 3, 2, 5}), "[op] cu_seqlens must ascend, got 3 before 2");
  EXPECT_EQ(bounds({0, -1, 5}), "[op] cu_seqlens must ascend, got 0 before -1");
  EXPECT_EQ(bounds({0, 3, 4}), "[op] cu_seqlens must end with T = 5, got 4");
  EXPECT_EQ(packed_rows("op", std::nullopt, 7), 7);
  EXPECT_EQ(packed_rows("op", at::tensor({0, 2, 5}), 1), 2);
  EXPECT_EQ(error_of([] { packed_rows("op", at::tensor({0, 2, 5}), 2); }), "[op] cu_seqlens needs a batch of 1, got 2");
  EXPECT_NE(error_of([] { packed_rows("op", at::tensor({0.0, 2.0}), 1); }), kNoError);
}

// cumulative sums from a start of each sequence's own, and the totals
PackedResult running_sum(const std::vector<Tensor>& timed, const std::vector<Tensor>& rows) {
  const Tensor sums = timed[0].cumsum(1) + rows[0].unsqueeze(1);
  return {{sums, Tensor()}, {rows[0] + timed[0].sum(1)}};
}

TEST(Common, ForEachSequenceKeepsTheOrder) {
  const Tensor x = at::arange(1, 13, at::kDouble).view({1, 6, 2}), start = at::arange(8, at::kDouble).view({4, 2});
  const auto result = for_each_sequence({0, 2, 2, 4, 6}, {x, Tensor()}, {start}, running_sum);
  ASSERT_EQ(result.timed.size(), 2u);
  EXPECT_FALSE(result.timed[1].defined());
  for (const auto& [row, first, length] : {std::tuple{0, 0, 2}, {1, 2, 0}, {2, 2, 2}, {3, 4, 2}}) {
    const auto alone = running_sum({x.narrow(1, first, length)}, {start.narrow(0, row, 1)});
    EXPECT_TRUE(result.timed[0].narrow(1, first, length).equal(alone.timed[0]));
    EXPECT_TRUE(result.rows[0].narrow(0, row, 1).equal(alone.rows[0]));
  }
  const auto nothing = for_each_sequence({0}, {x.narrow(1, 0, 0)}, {start.narrow(0, 0, 0)}, running_sum);
  EXPECT_EQ(nothing.timed[0].sizes(), (std::vector<int64_t>{1, 0, 2}));
  EXPECT_EQ(nothing.rows[0].sizes(), (std::vector<int64_t>{0, 2}));
}

TEST(Common, NoAutocastKeepsTypes) {
  const bool before = at::autocast::is_autocast_enabled(at::kCPU);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const Tensor x = at::ones({4, 4});
  EXPECT_EQ(at::mm(x, x).scalar_type(), at::kBFloat16);
  {
    NoAutocast here;
    EXPECT_EQ(at::mm(x, x).scalar_type(), at::kFloat);
  }
  at::autocast::set_autocast_enabled(at::kCPU, before);
}

}  // namespace
}  // namespace cortado
