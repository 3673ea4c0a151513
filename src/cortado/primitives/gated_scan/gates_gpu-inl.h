// A chunk's gates: sums P_t from the chunk's start, as base-2 logs.
//
// P_t - P_s would be NaN for gates of -inf, and inexact after large gates. So a gate below kCut (a factor of e^-60
// vanishes in rounding) starts a new stretch: sums restart there, and nothing passes from one stretch to the next.
#pragma once

#include "cortado/primitives/cuda/device.h"
#include "cortado/primitives/gated_scan/kernel_gpu.h"

namespace cortado::gated {

using namespace device;

// With one gate per channel: the bound on a block's gates, as base-2 logs, within which q e^F and k e^-F are finite in
// their type.
#ifdef CORTADO_HALF
constexpr float kSteep = -8.0f;
#else
constexpr float kSteep = -80.0f;
#endif

// Arrays in shared memory.
struct Sums {
  float *sums, *cuts;  // P_t log2(e) since the stretch began; number of cuts up to t
  u32* to_end;         // exp(P_end - P_t), 0 across a cut; two 16-bit numbers per word
  float *keeps, *any;  // exp(P_end), 0 across a cut; whether there is a cut. If not, `cuts` is not written

  DEV explicit Sums(float* numbers)
      : sums(numbers),
        cuts(numbers + kGpuChunk),
        to_end(reinterpret_cast<u32*>(numbers + 2 * kGpuChunk)),
        keeps(numbers + 3 * kGpuChunk),
        any(keeps + 1) {}
};

// Combines a stretch with the one before it.
DEV void join(float& cuts, float& sum, float cuts_before, float sum_before) {
  if (cuts == 0) sum += sum_before;
  cuts += cuts_before;
}

DEV void sum_gates_with_cuts(const float* gate, const Sums& out, int lane) {
  float cut[2], sum[2];
  for (int i = 0; i < 2; ++i) {
    cut[i] = gate[i] < kCut ? 1.0f : 0.0f;
    sum[i] = gate[i] < kCut ? 0.0f : gate[i] * kLog2e;
  }
  join(cut[1], sum[1], cut[0], sum[0]);
  float cuts = cut[1], total = sum[1];
  for (int d = 1; d < 32; d <<= 1) {
    const float cuts_before = __shfl_up_sync(~0u, cuts, d), sum_before = __shfl_up_sync(~0u, total, d);
    if (lane >= d) join(cuts, total, cuts_before, sum_before);
  }
  const float cuts_before = __shfl_up_sync(~0u, cuts, 1), sum_before = __shfl_up_sync(~0u, total, 1);
  if (lane > 0) join(cut[0], sum[0], cuts_before, sum_before);
  const float end_cuts = __shfl_sync(~0u, cuts, 31), end = __shfl_sync(~0u, total, 31);
  const float both_cuts[2] = {cut[0], cuts}, both[2] = {sum[0], total};
  float left[2];
  for (int i = 0; i < 2; ++i) {
    out.cuts[2 * lane + i] = both_cuts[i];
    out.sums[2 * lane + i] = both[i];
    left[i] = both_cuts[i] == end_cuts ? power(end - both[i]) : 0.0f;
  }
  out.to_end[lane] = pack(left[0], left[1]);
  if (lane == 0) *out.keeps = 0;
}

// By one warp, two gates per lane.
DEV void sum_gates(const float* gates, const Sums& out, int lane) {
  const float gate[2] = {gates[2 * lane], gates[2 * lane + 1]};
  const bool any = __any_sync(~0u, gate[0] < kCut || gate[1] < kCut);
  if (lane == 0) *out.any = any ? 1.0f : 0.0f;
  if (any) return sum_gates_with_cuts(gate, out, lane);
  float total = (gate[0] + gate[1]) * kLog2e;
  for (int d = 1; d < 32; d <<= 1) {
    const float before = __shfl_up_sync(~0u, total, d);
    if (lane >= d) total += before;
  }
  const float end = __shfl_sync(~0u, total, 31), first = total - gate[1] * kLog2e;
  *reinterpret_cast<Two*>(out.sums + 2 * lane) = {first, total};
  out.to_end[lane] = pack(power(end - first), power(end - total));
  if (lane == 0) *out.keeps = power(end);
}

// The gates' gradient (kernel_gpu.h): a block has a segment of kGpuGateHeads heads, a thread 16 tokens of one head.
DEV void add_up_gate_gradient(const GpuGateGradient& in) {
  constexpr int kSlices = kGpuThreads / kGpuGateHeads, kTokens = kGpuSegment / kSlices;
  float* totals = reinterpret_cast<float*>(shared_memory());
  const int thread = CORTADO_THREAD, head = blockIdx.z * kGpuGateHeads + thread % kGpuGateHeads;
  const int slice = thread / kGpuGateHeads, row = blockIdx.x, segment = blockIdx.y;
  const long long first = in.bounds ? in.bounds[row] : 0, batch = in.bounds ? 0 : row;
  const int tokens = in.bounds ? static_cast<int>(in.bounds[row + 1] - first) : in.tokens;
  if (segment * kGpuSegment >= tokens) return;
  const int begin = segment * kGpuSegment + slice * kTokens;
  const long long slab = static_cast<long long>(in.batch) * in.tokens * in.heads;
  const long long place = (batch * in.tokens + first) * in.heads + head;
  float own[kTokens], total = 0;
  UNROLL for (int i = 0; i < kTokens; ++i) {
    own[i] = 0;
    if (head < in.heads && begin + i < tokens) {
      const long long at = place + static_cast<long long>(begin + i) * in.heads;
      for (int x = 0; x < in.slabs; ++x) own[i] += in.dots_q[at + x * slab] - in.dots_k[at + x * slab];
    }
    total += own[i];
  }
  totals[thread] = total;
  __syncthreads();
  if (head >= in.heads) return;
  float sum = 0;
  const long long number = gpu_first_segment(row, first, in.tokens, in.bounds != nullptr) + segment;
  for (int i = 0; i < in.partials; ++i) sum += in.crossings[(number * in.heads + head) * in.partials + i];
  for (int other = in.reverse ? 0 : kSlices - 1; other != slice; other += in.reverse ? 1 : -1) {
    sum += totals[other * kGpuGateHeads + thread % kGpuGateHeads];
  }
  const float* gates = static_cast<const float*>(in.g.data) + batch * in.g.batch + first * in.g.token +
                       head / (in.heads / in.g.heads) * in.g.head;
  UNROLL for (int i = 0; i < kTokens; ++i) {
    const int t = in.reverse ? begin + i : begin + kTokens - 1 - i;
    sum += in.reverse ? own[i] : own[kTokens - 1 - i];
    if (t < tokens)
      in.gradient[place + static_cast<long long>(t) * in.heads] = gates[t * in.g.token] < kCut ? 0.0f : sum;
  }
}

}  // namespace cortado::gated
