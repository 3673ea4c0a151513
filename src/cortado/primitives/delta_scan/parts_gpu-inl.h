// Joins the parts of time of the delta scan; see kernel_gpu.h.
#pragma once

#include "cortado/primitives/cuda/device.h"
#include "cortado/primitives/delta_scan/kernel_gpu.h"

namespace cortado::delta {

using namespace device;

// A block holds 64 values of one row's and head's state in shared memory and walks through the parts; a thread has one
// of these values and every eighth key.
template <int kKeys>
DEV void join_parts(const GpuDeltaJoin& in) {
  constexpr int kEvery = kGpuJoinThreads / gated::kGpuPiece, kOwn = kKeys / kEvery;
  const int pieces = (in.values + gated::kGpuPiece - 1) / gated::kGpuPiece, rest = blockIdx.x / pieces;
  const int head = rest % in.heads, row = rest / in.heads;
  const int place = CORTADO_THREAD % gated::kGpuPiece, first = CORTADO_THREAD / gated::kGpuPiece;
  const int value = blockIdx.x % pieces * gated::kGpuPiece + place;
  const bool there = value < in.values;
  const long long whole = times(row * in.heads + head, in.keys * in.values) + value;
  float* state = reinterpret_cast<float*>(shared_memory()) + place;
  const auto each = [&](const auto& work) {
    UNROLL for (int i = 0; i < kOwn; ++i) {
      const int key = first + i * kEvery;
      if (there && key < in.keys) work(i, key, state[key * gated::kGpuPiece]);
    }
  };
  each([&](int, int key, float& number) {
    number = in.initial ? in.initial[whole + key * in.values] * in.initial_factor : 0.0f;
  });
  __syncthreads();
  UNROLL_BY(1) for (int part = 0; part < in.parts; ++part) {
    const long long number = times(row * in.parts + part, in.heads) + head;
    float* begins = in.states + number * in.keys * in.values + value;
    const float* through = in.through + number * in.keys * in.keys;
    float next[kOwn] = {};
    each([&](int i, int key, float& before) {
      next[i] = begins[key * in.values];
      begins[key * in.values] = before;
    });
    UNROLL_BY(1) for (int key = 0; key < in.keys; key += 2) {
      const float x[2] = {state[key * gated::kGpuPiece], state[(key + 1) * gated::kGpuPiece]};
      each([&](int i, int to, float&) {
        const auto a = *reinterpret_cast<const Two*>(through + to * in.keys + key);
        next[i] += a.x[0] * x[0] + a.x[1] * x[1];
      });
    }
    __syncthreads();
    each([&](int i, int, float& after) { after = next[i]; });
    __syncthreads();
  }
  if (!in.last) return;
  each([&](int, int key, float& number) { in.last[whole + key * in.values] = number * in.last_factor; });
}

}  // namespace cortado::delta
