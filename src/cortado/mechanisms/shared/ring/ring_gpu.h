// Joins a ring of past keys and values with new ones, on a GPU: sizes, strides and pointers. Read by C++ and by NVRTC.
#pragma once

#include "cortado/primitives/cuda/timed.h"

namespace cortado::window {

// joined [B, places + tokens, heads, width] = (past [B, places, ...], new [B, tokens, ...]), 16-bit, of keys and of values;
// and the first place in which there is a key: places - min(position, places).
struct GpuRing {
  struct Part {
    cuda::GpuTimed past, added, joined;
    int width;  // a multiple of 8
  } keys, values;
  const long long* position;  // [B]: tokens before
  long long* first_key;       // [B]
  int places, tokens, heads;
};

constexpr int kGpuRingThreads = 256;  // of a block, each with a piece of eight numbers: (pieces, B)

}  // namespace cortado::window
