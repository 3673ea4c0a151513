#include "cortado/primitives/kernels/kept_memory.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <thread>

#include "cortado/primitives/kernels/scratch.h"
#include "cortado/primitives/kernels/tensors.h"
#include "cortado/testing/kernels.h"

namespace cortado::kernels {
namespace {

Tensor floats(int64_t count) { return room({count}, at::kFloat); }

constexpr int64_t kMany = 5 << 20;

#if !defined(__SANITIZE_ADDRESS__)
TEST(KeptMemory, WhatWasFreedIsGivenToTheNextOfItsSize) {
  Tensor first = floats(kMany);
  const void* place = first.data_ptr();
  const Tensor other = floats(kMany);
  EXPECT_NE(other.data_ptr(), place);
  first.reset();
  const Tensor small = floats(kMany / 2), larger = floats(kMany + kMany / 2);
  EXPECT_NE(small.data_ptr(), place);
  EXPECT_NE(larger.data_ptr(), place);
  EXPECT_EQ(floats(kMany - 1000).data_ptr(), place);
  EXPECT_EQ(floats(kMany / 5 * 4).data_ptr(), place);  // a quarter more than it needs
  for (int i = 0; i < 2000; ++i)
    ASSERT_EQ(floats(kMany).data_ptr(), place) << i;  // more than all of them together may be
}
#endif

TEST(KeptMemory, KeepsNoMoreThanItsShareOfTheMachine) {
  const int64_t page = 4096, all = sysconf(_SC_PHYS_PAGES) * page;
  std::vector<Tensor> many;  // untouched, so without pages of their own
  for (int64_t bytes = 0; bytes < all / 12; bytes += 64 << 20) many.push_back(floats(16 << 20));
  many.clear();
  const Tensor after = floats(16 << 20).fill_(1);
  EXPECT_EQ(after[-1].item<float>(), 1);
}

TEST(KeptMemory, SeveralThreadsShareIt) {
  std::vector<std::thread> threads;
  std::array<bool, 4> right{};
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&right, i] {
      bool all = true;
      for (int round = 0; round < 20; ++round) {
        const Tensor mine = floats((1 << 19) + i * 1000).fill_(i);
        std::this_thread::yield();
        all = all && mine.min().item<float>() == i && mine.max().item<float>() == i;
      }
      right[i] = all;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const bool one : right) EXPECT_TRUE(one);
}

#if !defined(__SANITIZE_ADDRESS__)  // which has a malloc of its own
// Bytes that malloc has given out.
int64_t in_use() {
  const struct mallinfo2 info = ::mallinfo2();
  return static_cast<int64_t>(info.uordblks + info.hblkhd);
}

TEST(Scratch, AThreadGivesItBackAtItsEnd) {
  const auto takes = [] { EXPECT_TRUE(Scratch().take(1 << 20)); };
  std::thread(takes).join();
  const int64_t before = in_use();
  for (int i = 0; i < 16; ++i) std::thread(takes).join();
  EXPECT_LT(in_use() - before, 16 << 20);  // of 64 MiB
}
#endif

// In this file's own arena.
TEST(Scratch, KeepsOneBlockAsLargeAsATaskNeeded) {
  constexpr int64_t kHalf = Arena::kKept / 2;
  std::thread([] {
    {
      Scratch task;
      EXPECT_NE(task.take(kHalf) + kHalf, task.take(kHalf));
    }
    EXPECT_EQ(arena.count, 0);
    for (int i = 0; i < 2; ++i) {
      {
        Scratch task;
        const float* half = task.take(kHalf);
        EXPECT_EQ(task.take(kHalf), half + kHalf);
      }
      EXPECT_EQ(arena.count, 1);
    }
    EXPECT_TRUE(Scratch().take(Arena::kKept + 16));
    EXPECT_EQ(arena.count, 0);  // larger than what is kept
  }).join();
}

TEST(KeptMemory, SmallResultsAndPoisonedOnesAreTorchs) {
  const Tensor small = floats(10);
  EXPECT_EQ(small.numel(), 10);
  floats(kMany).fill_(1);
  const testing::Poisoned poisoned;
  EXPECT_TRUE(floats(kMany).isnan().all().item<bool>());
}

TEST(KeptMemory, LooksLikeAnEmptyTensor) {
  const Tensor x = room({3, 1000, 1000}, at::TensorOptions(at::kBFloat16));
  EXPECT_EQ(x.scalar_type(), at::kBFloat16);
  EXPECT_EQ(x.strides(), at::IntArrayRef({1000000, 1000, 1}));
  EXPECT_TRUE(x.is_cpu() && x.is_contiguous());
}

}  // namespace
}  // namespace cortado::kernels
