// The gated scan with one gate per head on tensor cores; see kernel_gpu.h.
//
// A block of eight warps has one head of one row and 64 of its values. It walks through time in chunks of 64 tokens;
// while one chunk is computed, the next ones are copied to stages of shared memory. The state stays in registers
// (float32), with a 16-bit copy in shared memory for all warps to read. With P_t the sum of the gates from the chunk's
// start to t:
//   o = scale ((q e^P) S + (q k^T * e^{P_t - P_s}, s <= t) v)        S <- e^{P_end} S + (k e^{P_end - P_s})^T v
// Each warp has 16 tokens and 32 values of o, and K/4 rows and 32 values of S.
//
// Variants: KEYS=64 | KEYS=128 | KEYS=64 CORTADO_HALF | KEYS=128 CORTADO_HALF
#include "cortado/primitives/gated_scan/parts_gpu-inl.h"
#include "cortado/primitives/gated_scan/scan_gpu-inl.h"

#ifndef KEYS
#define KEYS 64
#endif

// Two blocks per multiprocessor, where registers and shared memory suffice.
#define CORTADO_SCAN(name, reverse, task, blocks)                                                      \
  extern "C" __global__ void __launch_bounds__(256, blocks) name(const cortado::gated::GpuScan scan) { \
    cortado::gated::Scan<KEYS, reverse, cortado::gated::Task::task>(scan).run();                       \
  }
CORTADO_SCAN(gated_scan, false, kRead, KEYS == 64 ? 2 : 1)
CORTADO_SCAN(gated_scan_reverse, true, kRead, KEYS == 64 ? 2 : 1)
CORTADO_SCAN(gated_scan_dot, false, kDot, 1)
CORTADO_SCAN(gated_scan_dot_reverse, true, kDot, 1)
CORTADO_SCAN(gated_scan_states, false, kStates, 2)
CORTADO_SCAN(gated_scan_states_reverse, true, kStates, 2)

extern "C" __global__ void __launch_bounds__(256) gated_scan_join(const cortado::gated::GpuJoin join) {
  cortado::gated::join_parts(join);
}

extern "C" __global__ void __launch_bounds__(256) gated_scan_gate_gradient(const cortado::gated::GpuGateGradient in) {
  cortado::gated::add_up_gate_gradient(in);
}
