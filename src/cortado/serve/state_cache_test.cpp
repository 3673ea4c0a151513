#include "cortado/serve/state_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace cortado {
namespace {

using Tokens = std::vector<int32_t>;

// A snapshot of `bytes` bytes that can be recognised by its number.
std::shared_ptr<const Snapshot> snapshot(int number, int64_t bytes = 4000) {
  Snapshot made;
  made.logits = at::full({bytes / 4}, number, at::kFloat);
  made.state.position = at::empty({0}, at::kLong);
  return std::make_shared<Snapshot>(std::move(made));
}

int number_of(const StateCache::Found& found) { return found.snapshot ? found.snapshot->logits[0].item<int>() : -1; }

TEST(StateCache, FindsTheDeepestSnapshotOnThePath) {
  StateCache cache(1 << 20);
  EXPECT_EQ(cache.find(0, Tokens{1, 2}).snapshot, nullptr);
  cache.keep(0, Tokens{1, 2, 3, 4}, snapshot(4));
  cache.keep(0, Tokens{1, 2}, snapshot(2));        // in the middle of the first path
  cache.keep(0, Tokens{1, 2, 9, 9}, snapshot(9));  // a branch
  const auto depth = [&](const Tokens& tokens) { return cache.find(0, tokens).depth; };
  EXPECT_EQ(number_of(cache.find(0, Tokens{1, 2, 3, 4})), 4);
  EXPECT_EQ(depth({1, 2, 3, 4, 5, 6}), 4);
  EXPECT_EQ(number_of(cache.find(0, Tokens{1, 2, 3})), 2);
  EXPECT_EQ(number_of(cache.find(0, Tokens{1, 2, 3, 7})), 2);
  EXPECT_EQ(depth({1, 2, 9, 9, 1}), 4);
  EXPECT_EQ(cache.find(0, Tokens{1}).snapshot, nullptr);
  EXPECT_EQ(cache.find(0, Tokens{}).snapshot, nullptr);
  EXPECT_EQ(cache.find(0, Tokens{2, 1}).snapshot, nullptr);
  EXPECT_EQ(cache.find(1, Tokens{1, 2}).snapshot, nullptr) << "another model's";
  EXPECT_EQ(cache.snapshots(), 3);
}

TEST(StateCache, KnowsHowFarASequenceHasBeenSeen) {
  StateCache cache(1 << 20);
  cache.see(0, Tokens{1, 2, 3, 4, 5});
  EXPECT_EQ(cache.seen(0, Tokens{1, 2, 3, 9}), 3);
  EXPECT_EQ(cache.seen(0, Tokens{1, 2, 3, 4, 5, 6}), 5);
  EXPECT_EQ(cache.seen(1, Tokens{1, 2}), 0);
  EXPECT_EQ(cache.snapshots(), 0);
}

TEST(StateCache, WhatWasUsedLongestAgoGoesFirst) {
  StateCache cache(3 * 4000 + 2000);
  for (int i = 0; i < 3; ++i) cache.keep(0, Tokens{i, i}, snapshot(i));
  EXPECT_EQ(cache.snapshots(), 3);
  cache.find(0, Tokens{0, 0});
  cache.keep(0, Tokens{3, 3}, snapshot(3));
  EXPECT_EQ(number_of(cache.find(0, Tokens{0, 0})), 0);
  EXPECT_EQ(cache.find(0, Tokens{1, 1}).snapshot, nullptr);
  EXPECT_EQ(number_of(cache.find(0, Tokens{3, 3})), 3);
  EXPECT_EQ(cache.evicted(), 1);
  cache.keep(0, Tokens{5}, snapshot(5, 1 << 20));  // larger than the cache
  EXPECT_EQ(cache.find(0, Tokens{5}).snapshot, nullptr);
  EXPECT_EQ(cache.snapshots(), 3);
}

// Compares with a plain list of what was kept.
TEST(StateCache, AgreesWithAListOfSnapshots) {
  std::mt19937 random(7);
  StateCache cache(int64_t{1} << 30);
  std::vector<std::pair<Tokens, int>> kept;
  const auto draw = [&] {
    Tokens tokens(random() % 12);
    for (auto& token : tokens) token = static_cast<int32_t>(random() % 2);
    return tokens;
  };
  for (int i = 0; i < 2000; ++i) {
    const Tokens tokens = draw();
    size_t deepest = 0;
    int number = -1;
    for (const auto& [other, its] : kept) {
      const bool on_path = other.size() <= tokens.size() && std::equal(other.begin(), other.end(), tokens.begin());
      if (on_path && (number < 0 || other.size() >= deepest)) deepest = other.size(), number = its;
    }
    const auto found = cache.find(0, tokens);
    ASSERT_EQ(number_of(found), number);
    ASSERT_EQ(static_cast<size_t>(found.depth), deepest);
    std::erase_if(kept, [&](const auto& one) { return one.first == tokens; });
    kept.emplace_back(tokens, i);
    cache.keep(0, tokens, snapshot(i, 8));
    ASSERT_EQ(cache.snapshots(), static_cast<int64_t>(kept.size()));
  }
}

TEST(StateCache, StaysWithinItsBytesAndCountsThemRight) {
  std::mt19937 random(3);
  StateCache cache(100000);
  for (int i = 0; i < 3000; ++i) {
    Tokens tokens(1 + random() % 30);
    for (auto& token : tokens) token = static_cast<int32_t>(random() % 3);
    if (i % 3 == 0) {
      cache.see(0, tokens);
    } else {
      cache.keep(static_cast<int64_t>(random() % 2), tokens, snapshot(i, static_cast<int64_t>(4 + random() % 9000)));
    }
    ASSERT_LE(cache.bytes(), 100000);
  }
  cache.keep(0, Tokens{1}, snapshot(1, 99000));  // nothing fits beside it, so everything else must go
  EXPECT_LE(cache.bytes(), 100000);
  EXPECT_EQ(cache.snapshots(), 1);
}

}  // namespace
}  // namespace cortado
