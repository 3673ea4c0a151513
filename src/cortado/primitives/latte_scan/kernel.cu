// Causal attention through latents, including the softmaxes, on tensor cores; see kernel_gpu.h.
//
// A block walks through time as the gated scan's does. It computes a chunk's q and k from p and theta in place, in
// shared memory, in float32: the running maximum, the sums from the chunk's start on, and from both U and W. All of a
// chunk is relative to one maximum per latent. If a latent's logits rise by more than kSteep within a chunk, U
// relative to that maximum would overflow for the first tokens: then pairs of tokens are computed one by one.
// APART: half of a block's warps prepare a chunk while the other half multiplies the preceding one.
//
// Variants: KEYS=64 APART | KEYS=64 | KEYS=128
#include "cortado/primitives/latte_scan/join_gpu-inl.h"
#include "cortado/primitives/latte_scan/latte_gpu-inl.h"

#ifndef KEYS
#define KEYS 64
#endif

// (sm_80 has too little shared memory for that.)
#if defined(APART) && !(defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900)
#define IS_APART true
#else
#define IS_APART false
#endif
#define THREADS (IS_APART ? 512 : 256)
#define CORTADO_LATTE(name, task)                                                                        \
  extern "C" __global__ void __launch_bounds__(THREADS, 1) name(const cortado::latent::GpuLatte latte) { \
    cortado::latent::Latte<KEYS, cortado::latent::Task::task, IS_APART>(latte).run();                    \
  }
CORTADO_LATTE(latte_read, kRead)
CORTADO_LATTE(latte_read_states, kReadStates)
CORTADO_LATTE(latte_weights, kWeights)
CORTADO_LATTE(latte_values, kValues)
CORTADO_LATTE(latte_logits, kLogits)
CORTADO_LATTE(latte_logits_states, kLogitsStates)

extern "C" __global__ void __launch_bounds__(256) latte_join(const cortado::latent::GpuLatteJoin join) {
  cortado::latent::join_parts(join);
}

extern "C" __global__ void __launch_bounds__(256) latte_query_gradient(const cortado::latent::GpuQueryGradient in) {
  cortado::latent::query_gradient(in);
}
