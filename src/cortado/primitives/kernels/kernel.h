// Types shared by kernels and their callers. No torch here: kernels are compiled once per instruction set. If they
// included foreign headers, the linker could pick an inline function compiled for AVX-512 for the whole program.
#pragma once

#include <cstdint>

namespace cortado::kernels {

enum class Element : int32_t { kFloat32, kBFloat16, kFloat16 };

// A tensor [B,T,h,X] in any layout, strides in elements. data null: input not given, or output not wanted.
struct Timed {
  void* data = nullptr;
  Element type = Element::kFloat32;
  int64_t row = 0, token = 0, head = 0, inner = 1;  // strides
  int64_t repeat = 1;                               // heads per head of the tensor (consecutive heads share one)
};

// [B,T,D] float32 with contiguous channels; strides in elements. data null: input not given, or output not wanted.
struct Channels {
  float* data = nullptr;
  int64_t row = 0, token = 0;
};

// States [rows,h,K,V], contiguous float32. data null: the initial state is zero, or the final state is not wanted.
struct States {
  float* data = nullptr;
  int64_t heads = 0;
  int64_t repeat = 1;  // as in Timed; of results, the first of the copies is kept
};

// Results of more elements than this have left the caches before anything reads them. If their rows are whole cache
// lines, kernels write them with non-temporal stores.
constexpr int64_t kPastCaches = int64_t{4} << 20;
constexpr bool goes_past_caches(int64_t elements, int64_t row) { return row % 64 == 0 && elements > kPastCaches; }

// How to run work on several threads: run() calls work(task, i) for every i in [0, workers), possibly concurrently.
// Kernels never start threads themselves.
struct Parallel {
  int64_t threads = 1;
  void (*run)(int64_t workers, void (*work)(void* task, int64_t worker), void* task) = nullptr;
};

}  // namespace cortado::kernels
