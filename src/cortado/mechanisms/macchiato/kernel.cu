// Latte-Macchiato's work after its two sums: one softmax over window and latents, and the sum of both parts.
// mix_gpu.h says what is computed.
#include "cortado/mechanisms/macchiato/mix_gpu-inl.h"

#define CORTADO_MIX(name, In) \
  extern "C" __global__ void __launch_bounds__(256) name(const cortado::latent::In in) { cortado::latent::name(in); }
CORTADO_MIX(mix_weights, GpuMixWeights)
CORTADO_MIX(mix_weights_gradient, GpuMixWeights)
CORTADO_MIX(mix, GpuMix)
CORTADO_MIX(mix_gradient, GpuMix)
