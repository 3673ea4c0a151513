// The cross-entropy of rows of logits, and its gradient in their place; see cross_entropy_gpu.h.
// Variants: | CORTADO_HALF
#include "cortado/nn/cross_entropy/cross_entropy_gpu-inl.h"

extern "C" __global__ void __launch_bounds__(512, 2) cross_entropy(const cortado::entropy::GpuCrossEntropy in) {
  cortado::entropy::cross_entropy(in);
}
