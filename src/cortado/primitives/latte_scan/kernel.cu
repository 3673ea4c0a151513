// Causal attention through latents on tensor cores, softmaxes included: kernel_gpu.h says what is computed.
//
// A block goes through time as the gated scan's does. What a chunk's q and k are is made of p and theta in place, in
// shared memory, in float32: the running maximum, the sums from the chunk's start on, and from both U and W. All
// of a chunk is relative to one maximum a latent. Where a latent's logits rise by more than kSteep within a chunk, that has no
// number for its first tokens: there pairs of tokens are computed one by one.
//
// Variants: KEYS=64 | KEYS=128
#include "cortado/primitives/latte_scan/join_gpu-inl.h"
#include "cortado/primitives/latte_scan/latte_gpu-inl.h"

#ifndef KEYS
#define KEYS 64
#endif

// Two blocks on a multiprocessor, where shared memory and registers suffice.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900 && KEYS == 64
#define BLOCKS 2
#else
#define BLOCKS 1
#endif
#define CORTADO_LATTE(name, task, blocks)                                                                 \
  extern "C" __global__ void __launch_bounds__(256, blocks) name(const cortado::latent::GpuLatte latte) { \
    cortado::latent::Latte<KEYS, cortado::latent::Task::task>(latte).run();                               \
  }
CORTADO_LATTE(latte_read, kRead, 1)
CORTADO_LATTE(latte_read_states, kReadStates, BLOCKS)
CORTADO_LATTE(latte_weights, kWeights, 1)
CORTADO_LATTE(latte_values, kValues, 1)
CORTADO_LATTE(latte_logits, kLogits, 1)
CORTADO_LATTE(latte_logits_states, kLogitsStates, 1)

extern "C" __global__ void __launch_bounds__(256) latte_join(const cortado::latent::GpuLatteJoin join) {
  cortado::latent::join_parts(join);
}

extern "C" __global__ void __launch_bounds__(256) latte_query_gradient(const cortado::latent::GpuQueryGradient in) {
  cortado::latent::query_gradient(in);
}
