// Tests of latents that hold the first token alone.
#include "cortado/convert/sinks.h"

#include <gtest/gtest.h>

#include "cortado/testing/compare.h"

namespace cortado {
namespace {

constexpr int64_t kWidth = 12, kTokens = 600;

// A text whose first token lies along channel 0, which the other tokens have little of.
Tensor text() {
  Tensor y = at::randn({kTokens, kWidth}, at::kDouble);
  y.select(1, 0) *= 0.05;
  y[0].fill_(0.3);
  y[0][0] = 8;
  return y;
}

Tensor margins(const Tensor& y, const Tensor& keys) {
  const Tensor logits = at::matmul(y, keys.t());
  return logits[0] - logits.slice(0, 16).exp().mean(0).log();
}

TEST(LatentSinks, AreRaisedForTheFirstTokenAlone) {
  at::manual_seed(7);
  Tensor keys = at::randn({4, kWidth}, at::kDouble) * 0.3;
  keys.select(1, 0).zero_();
  keys[1][0] = 1.3;  // a sink: the first token outweighs each other by more than e^10
  keys[2][0] = 0.5;  // not quite a sink
  keys[3][0] = 4;    // a sink that needs no change
  LatentSinks sinks;
  for (int i = 0; i < 6; ++i) sinks.add(text(), keys);
  const auto found = sinks.settled(keys);
  EXPECT_EQ(found.sinks, 2);
  for (const int64_t same : {0, 2, 3}) EXPECT_TRUE(found.keys[same].equal(keys[same])) << same;
  const Tensor fresh = text(), before = at::matmul(fresh, keys[1]), after = at::matmul(fresh, found.keys[1]);
  EXPECT_LT(margins(fresh, keys)[1].item<double>(), 12);
  EXPECT_NEAR(margins(fresh, found.keys)[1].item<double>(), 20, 0.5);
  EXPECT_LT((after - before).slice(0, 16).abs().max().item<double>(), 0.5);
  // A million such tokens weigh little compared with the first.
  EXPECT_LT(1e6 * std::exp(-margins(fresh, found.keys)[1].item<double>()), 0.01);

  LatentSinks again;
  for (int i = 0; i < 6; ++i) again.add(text(), found.keys);
  EXPECT_CLOSE(again.settled(found.keys).keys, found.keys, 0.02);
}

TEST(LatentSinks, OfTextsTooShortNothingChanges) {
  LatentSinks sinks;
  const Tensor keys = at::randn({3, kWidth}, at::kDouble);
  sinks.add(at::randn({16, kWidth}, at::kDouble), keys);
  sinks.sum({});
  EXPECT_EQ(sinks.settled(keys).sinks, 0);
  EXPECT_TRUE(sinks.settled(keys).keys.equal(keys));
}

}  // namespace
}  // namespace cortado
