// The delta scan on tensor cores; see kernel_gpu.h.
//
// Before the walk, one block per chunk inverts the chunk's system of 64 rows and stores the inverse in 16 bits: 64
// numbers per token and head. The walk is the gated scan's (gated_scan/kernel.cu), one block per head and 64 of its
// values.
//
// Variants: KEYS=64 | KEYS=128 | KEYS=64 CORTADO_HALF | KEYS=128 CORTADO_HALF
#include "cortado/primitives/delta_scan/channels_gpu-inl.h"
#include "cortado/primitives/delta_scan/delta_gpu-inl.h"
#include "cortado/primitives/delta_scan/inverse_gpu-inl.h"
#include "cortado/primitives/delta_scan/parts_gpu-inl.h"
#include "cortado/primitives/delta_scan/rest_gpu-inl.h"

#ifndef KEYS
#define KEYS 64
#endif

#define CORTADO_DELTA(name, Walk, task)                                                             \
  extern "C" __global__ void __launch_bounds__(256, 1) name(const cortado::delta::GpuDelta delta) { \
    cortado::delta::Walk<KEYS, cortado::gated::Task::task>(delta).run();                            \
  }
CORTADO_DELTA(delta_scan, DeltaScan, kRead)
CORTADO_DELTA(delta_scan_dot, DeltaScan, kDot)
CORTADO_DELTA(delta_gradient, DeltaGradient, kRead)
CORTADO_DELTA(delta_gradient_dot, DeltaGradient, kDot)

#define CORTADO_DELTA_CHANNELS(name, reverse)                                                       \
  extern "C" __global__ void __launch_bounds__(256, 1) name(const cortado::delta::GpuDelta delta) { \
    cortado::delta::ChannelDelta<KEYS, reverse>(delta).run();                                       \
  }
CORTADO_DELTA_CHANNELS(delta_channels, false)
CORTADO_DELTA_CHANNELS(delta_channels_gradient, true)

#define CORTADO_INVERSE(name, channels, blocks)                                                         \
  extern "C" __global__ void __launch_bounds__(128, blocks) name(const cortado::delta::GpuInverse in) { \
    cortado::delta::Inverse<KEYS, channels>(in).run();                                                  \
  }
CORTADO_INVERSE(delta_inverse, false, KEYS == 64 ? 6 : 4)
CORTADO_INVERSE(delta_inverse_channels, true, KEYS == 64 ? 3 : 2)

extern "C" __global__ void __launch_bounds__(512, 1) delta_join(const cortado::delta::GpuDeltaJoin in) {
  cortado::delta::join_parts<KEYS>(in);
}

extern "C" __global__ void __launch_bounds__(256) delta_store(const cortado::delta::GpuStored in) {
  cortado::delta::store(in);
}

extern "C" __global__ void __launch_bounds__(256) delta_rest(const cortado::delta::GpuRest in) {
  cortado::delta::rest(in);
}
