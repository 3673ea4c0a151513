// Tests of the learning rate's plateaus and of the order of chunks.
#include "cortado/train/schedule.h"

#include <gtest/gtest.h>

#include <set>

#include "cortado/convert/chunks.h"

namespace cortado {
namespace {

TEST(Plateau, LowersTheRateAsTorchDoes) {
  Plateau plateau;
  plateau.patience = 1;
  plateau.minimum = 2e-4;
  std::vector<double> rates;
  for (const double loss : {5.0, 4.0, 4.0, 3.9999, 4.5, 3.0, 3.1, 3.2, 3.3, 3.4, 3.5, 3.6}) {
    plateau.evaluated(loss);
    rates.push_back(plateau.rate);
  }
  // torch.optim.lr_scheduler.ReduceLROnPlateau(factor=0.1, patience=1, min_lr=2e-4) on the same losses.
  const std::vector<double> right = {1e-2, 1e-2, 1e-2, 1e-3, 1e-3, 1e-3, 1e-3, 2e-4, 2e-4, 2e-4, 2e-4, 2e-4};
  for (size_t i = 0; i < right.size(); ++i) EXPECT_NEAR(rates[i], right[i], 1e-12) << i;
}

TEST(Chunks, EveryTrainingChunkComesOnceAnEpoch) {
  const auto tokens = tokens_in_memory(at::arange(47));
  const Chunks chunks(tokens, 5, 2, 3);  // 9 chunks, 2 tokens left over
  EXPECT_EQ(chunks.training(), 7);
  EXPECT_TRUE(at::equal(chunks.held_out_chunk(1).tokens, at::arange(5, 10).unsqueeze(0)));
  for (const int64_t epoch : {0, 1}) {
    std::set<int64_t> seen;
    for (int64_t i = 0; i < 7; ++i) seen.insert(chunks.batch(epoch * 7 + i, 1).tokens[0][0].item<int64_t>());
    EXPECT_EQ(seen, (std::set<int64_t>{10, 15, 20, 25, 30, 35, 40}));
  }
  const Chunks again(tokens, 5, 2, 3);
  EXPECT_TRUE(at::equal(again.batch(3, 2).tokens, at::cat({chunks.batch(6, 1).tokens, chunks.batch(7, 1).tokens})));
}

}  // namespace
}  // namespace cortado
