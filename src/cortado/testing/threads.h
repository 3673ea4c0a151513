// Runs kernels on std::threads and plain memory, without torch: the thread sanitizer understands these, but not
// libgomp.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "cortado/primitives/kernels/kernel.h"

namespace cortado::testing {

// Returns a Parallel that starts kThreads threads for each call.
template <int kThreads>
kernels::Parallel std_threads() {
  return {.threads = kThreads, .run = [](int64_t workers, void (*work)(void*, int64_t), void* task) {
            std::vector<std::thread> threads;
            for (int64_t t = 0; t < kThreads; ++t) {
              threads.emplace_back([=] {
                for (int64_t i = workers * t / kThreads; i < workers * (t + 1) / kThreads; ++i) work(task, i);
              });
            }
            for (std::thread& thread : threads) thread.join();
          }};
}

using Floats = std::vector<float>;

// Returns uniform random numbers in [low, high).
inline Floats random_floats(int64_t size, float low = -1, float high = 1) {
  static std::mt19937 random(1);
  std::uniform_real_distribution<float> uniform(low, high);
  Floats x(static_cast<size_t>(size));
  for (float& value : x) value = uniform(random);
  return x;
}

// [B,T,H,X], contiguous.
inline kernels::Timed timed(Floats& x, int64_t tokens, int64_t heads, int64_t width) {
  return {.data = x.data(), .row = tokens * heads * width, .token = heads * width, .head = width};
}

// Calls run(parallel) on 1, 2 and 4 threads, with `results` overwritten before each call, and expects the same bits.
inline void expect_same_on_any_number_of_threads(const std::function<void(const kernels::Parallel&)>& run,
                                                 const std::vector<Floats*>& results) {
  std::vector<Floats> right;
  for (const auto& parallel : {std_threads<1>(), std_threads<2>(), std_threads<4>()}) {
    for (Floats* result : results) std::fill(result->begin(), result->end(), std::nanf(""));
    run(parallel);
    if (right.empty()) {
      for (const Floats* result : results) right.push_back(*result);
    }
    for (size_t i = 0; i < results.size(); ++i) {
      const size_t bytes = right[i].size() * sizeof(float);
      EXPECT_EQ(std::memcmp(results[i]->data(), right[i].data(), bytes), 0)
          << "result " << i << " on " << parallel.threads << " threads";
      for (const float value : *results[i]) ASSERT_FALSE(std::isnan(value)) << "result " << i << " is not all written";
    }
  }
}

}  // namespace cortado::testing
