// The gated scan with one gate per channel of the keys or of the values, on tensor cores; see kernel_gpu.h.
//
// As kernel.cu, in chunks of 64 tokens, but each chunk consists of blocks of 16. Per channel let F_t be the sum of the
// gates from the block's start to t, B_t the sum from after t to its end, and G the sum over the block. With gates on
// the keys
//   o_t = sum over earlier blocks of ((q e^F e^(G of the blocks between)) (k e^B)^T) v     and the state like a block
//       + ((q e^F) (k e^-F)^T, s <= t) v                                                   within the block
//   S <- e^G S + (k e^B)^T v, block by block
// With gates on the values it uses v e^B and v e^-F, and multiplies o by e^G on the way and by e^F at the end. e^-F
// overflows if a block's gates fall too far (steep): the pairs of such a block are computed one by one.
//
// Variants: KEYS=64 | KEYS=128 | KEYS=64 CORTADO_HALF | KEYS=128 CORTADO_HALF
#include "cortado/primitives/gated_scan/channels_gpu-inl.h"
#include "cortado/primitives/gated_scan/parts_gpu-inl.h"

#ifndef KEYS
#define KEYS 64
#endif

// Two blocks per multiprocessor, where shared memory and registers suffice.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900 && KEYS == 64
#define BLOCKS 2
#else
#define BLOCKS 1
#endif
#define CORTADO_CHANNEL_SCAN(name, reverse, keys, reads, blocks)                                       \
  extern "C" __global__ void __launch_bounds__(256, blocks) name(const cortado::gated::GpuScan scan) { \
    cortado::gated::ChannelScan<KEYS, reverse, keys, reads>(scan).run();                               \
  }
CORTADO_CHANNEL_SCAN(on_keys, false, true, true, BLOCKS)
CORTADO_CHANNEL_SCAN(on_keys_reverse, true, true, true, BLOCKS)
CORTADO_CHANNEL_SCAN(on_values, false, false, true, 1)
CORTADO_CHANNEL_SCAN(on_values_reverse, true, false, true, 1)
CORTADO_CHANNEL_SCAN(on_keys_states, false, true, false, BLOCKS)
CORTADO_CHANNEL_SCAN(on_keys_states_reverse, true, true, false, BLOCKS)
CORTADO_CHANNEL_SCAN(on_values_states, false, false, false, BLOCKS)
CORTADO_CHANNEL_SCAN(on_values_states_reverse, true, false, false, BLOCKS)

extern "C" __global__ void __launch_bounds__(256) join(const cortado::gated::GpuJoin join) {
  cortado::gated::join_parts(join);
}

extern "C" __global__ void __launch_bounds__(256) channel_gradient(const cortado::gated::GpuChannelGradient in) {
  cortado::gated::add_up_channel_gradient(in);
}
