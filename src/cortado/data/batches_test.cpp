#include "cortado/data/batches.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "cortado/base/error.h"
#include "cortado/testing/errors.h"

namespace cortado {
namespace {

using testing::error_of;
using testing::kNoError;

// Documents of the given lengths with the tokens 0, 1, 2, ..., so that each token is its own position.
std::shared_ptr<TokenFile> counting(const std::vector<int64_t>& lengths) {
  MemoryTokens memory(1 << 20);
  int32_t next = 0;
  for (const int64_t length : lengths) {
    std::vector<int32_t> tokens(static_cast<size_t>(length));
    std::iota(tokens.begin(), tokens.end(), next);
    next += static_cast<int32_t>(length);
    memory.start_document();
    memory.append(tokens);
  }
  return memory.finish();
}

TEST(RandomCrops, ConsecutiveTokensAtPureOffsets) {
  const auto tokens = counting({1000});
  const RandomCrops crops(tokens, 4, 16, 7), again(tokens, 4, 16, 7), other(tokens, 4, 16, 8);
  for (int64_t step = 0; step < 50; ++step) {
    const TrainingBatch batch = crops.batch(step);
    EXPECT_FALSE(batch.cu_seqlens);
    EXPECT_TRUE(at::equal(batch.targets, batch.tokens + 1));
    EXPECT_TRUE(at::equal(batch.tokens.narrow(1, 1, 15), batch.tokens.narrow(1, 0, 15) + 1));
    EXPECT_TRUE(at::equal(batch.tokens, again.batch(step).tokens));
    EXPECT_FALSE(at::equal(batch.tokens, other.batch(step).tokens));
    for (int64_t row = 0; row < 4; ++row) EXPECT_EQ(batch.tokens[row][0].item<int64_t>(), crops.offset(step, row));
  }
}

TEST(RandomCrops, ReachEveryOffsetAndNoOther) {
  const RandomCrops crops(counting({12}), 8, 4, 1);
  std::map<int64_t, int> seen;
  for (int64_t step = 0; step < 500; ++step) {
    for (int64_t row = 0; row < 8; ++row) ++seen[crops.offset(step, row)];
  }
  EXPECT_EQ(seen.size(), 8u);  // offsets 0 .. 7: the last target of the last crop is the last token
  EXPECT_EQ(seen.begin()->first, 0);
  EXPECT_EQ(seen.rbegin()->first, 7);
  for (const auto& [offset, count] : seen) EXPECT_NEAR(count, 500, 120) << offset;
}

TEST(RandomCrops, TooShort) {
  EXPECT_EQ(
      error_of([] { RandomCrops(counting({16}), 1, 16, 0); }),
      "[data] the text is too short: it has 16 tokens, one crop needs 17 (a context of 16 and the token after it)");
  EXPECT_EQ(error_of([] { RandomCrops(counting({17}), 1, 16, 0).batch(3); }), kNoError);
  EXPECT_NE(error_of([] { RandomCrops(counting({17}), 0, 16, 0); }), kNoError);
}

TEST(PackedDocuments, EveryTargetOncePerEpochAndNeverAcrossDocuments) {
  const std::vector<int64_t> lengths{5, 1, 40, 2, 17, 3, 1, 9};
  const auto tokens = counting(lengths);
  PackedDocuments packed(tokens, 8, 6, 3);
  const int64_t per_epoch = 5 + 40 + 2 + 17 + 3 + 9 - 6;
  PackedDocuments::Position position;
  std::map<int64_t, int> targets;
  int64_t rows = 0;
  for (; rows * 8 < per_epoch * 8; ++rows) {
    const TrainingBatch batch = packed.next(position);
    ASSERT_EQ(batch.tokens.sizes(), (at::IntArrayRef{1, 8}));
    EXPECT_TRUE(at::equal(batch.targets, batch.tokens + 1));
    const auto bounds = batch.cu_seqlens->data_ptr<int64_t>();
    const int64_t sequences = batch.cu_seqlens->numel() - 1;
    EXPECT_EQ(bounds[0], 0);
    EXPECT_EQ(bounds[sequences], 8);
    for (int64_t s = 0; s < sequences; ++s) {
      const int64_t length = bounds[s + 1] - bounds[s];
      EXPECT_TRUE(length >= 1 && length <= 6);
      for (int64_t t = bounds[s]; t + 1 < bounds[s + 1]; ++t) {
        EXPECT_EQ(batch.tokens[0][t + 1].item<int64_t>(), batch.tokens[0][t].item<int64_t>() + 1);
      }
    }
    for (int64_t t = 0; t < 8; ++t) ++targets[batch.targets[0][t].item<int64_t>()];
  }
  EXPECT_EQ(position.epoch, 8);  // per_epoch rows of 8 tokens are exactly 8 epochs
  EXPECT_EQ(position.document, 0);
  EXPECT_EQ(position.offset, 0);
  EXPECT_EQ(static_cast<int64_t>(targets.size()), per_epoch);
  for (const auto& [target, count] : targets) EXPECT_EQ(count, 8) << target;
  for (const int64_t start : tokens->documents()) EXPECT_EQ(targets.count(start), 0u) << "predicted across a bound";
}

TEST(PackedDocuments, GoesOnFromAPosition) {
  const auto tokens = counting({5, 40, 2, 17, 3, 9});
  PackedDocuments whole(tokens, 10, 16, 3), other_seed(tokens, 10, 16, 4);
  PackedDocuments::Position position, other_position;
  bool differs = false;
  for (int i = 0; i < 40; ++i) {
    const PackedDocuments::Position saved = position;
    const TrainingBatch batch = whole.next(position);
    PackedDocuments resumed(tokens, 10, 16, 3);
    PackedDocuments::Position from = saved;
    const TrainingBatch again = resumed.next(from);
    EXPECT_TRUE(at::equal(batch.tokens, again.tokens) && at::equal(*batch.cu_seqlens, *again.cu_seqlens));
    EXPECT_EQ(from, position);
    differs = differs || !at::equal(batch.tokens, other_seed.next(other_position).tokens);
  }
  EXPECT_TRUE(differs) << "the seed does not matter";
}

TEST(PackedDocuments, BadInput) {
  EXPECT_NE(error_of([] { PackedDocuments(counting({1, 1}), 8, 8, 0); }).find("no document has two tokens"),
            std::string::npos);
  PackedDocuments packed(counting({5, 5}), 4, 4, 0);
  for (PackedDocuments::Position bad : {PackedDocuments::Position{0, 2, 0}, {0, 0, 4}, {-1, 0, 0}, {0, 0, -1}}) {
    EXPECT_NE(error_of([&] { packed.next(bad); }).find("the data has changed"), std::string::npos);
  }
}

}  // namespace
}  // namespace cortado
