// What the kernels and their callers share. No torch: kernels are compiled once for each instruction set, and an inline
// function of somebody else's header, compiled with AVX-512 there, could be picked by the linker for everybody.
#pragma once

#include <cstdint>

namespace cortado::kernels {

enum class Element : int32_t { kFloat32, kBFloat16, kFloat16 };

// A tensor [B,T,h,X] wherever it lies, strides in elements. No data: not given, or not wanted.
struct Timed {
  void* data = nullptr;
  Element type = Element::kFloat32;
  int64_t row = 0, token = 0, head = 0, inner = 1;  // strides
  int64_t repeat = 1;                               // so many consecutive heads share one of the tensor's
};

// [B,T,D] float32 with the channels side by side; strides in elements. No data: not given, or not wanted.
struct Channels {
  float* data = nullptr;
  int64_t row = 0, token = 0;
};

// States [rows,h,K,V], contiguous float32. No data: zero, or not wanted.
struct States {
  float* data = nullptr;
  int64_t heads = 0;
  int64_t repeat = 1;  // as above; of results, the first of them is kept
};

// Results of more elements than this have left the caches before anything reads them: rows of whole cache lines are
// then written past those.
constexpr int64_t kPastCaches = int64_t{4} << 20;
constexpr bool goes_past_caches(int64_t elements, int64_t row) { return row % 64 == 0 && elements > kPastCaches; }

// How to run work on several threads: calls work(task, i) for every i in [0, workers), possibly at once. Kernels start
// no threads.
struct Parallel {
  int64_t threads = 1;
  void (*run)(int64_t workers, void (*work)(void* task, int64_t worker), void* task) = nullptr;
};

}  // namespace cortado::kernels
