// RMS norms under autocast in training, with the addition before them, and their gradient; see norm_gpu.h.
// Variants: PIECES=6 WARPS=1 | PIECES=6 WARPS=8 | PIECES=5 WARPS=2 CORTADO_HALF
#include "cortado/nn/norm/norm_gpu-inl.h"

#ifndef PIECES
#define PIECES 6
#define WARPS 1
#endif

extern "C" __global__ void __launch_bounds__(256) norm_forward(const cortado::norm::GpuNorm in) {
  cortado::norm::Norm<PIECES, WARPS>(in).forward();
}

extern "C" __global__ void __launch_bounds__(256) norm_backward(const cortado::norm::GpuNorm in) {
  cortado::norm::Norm<PIECES, WARPS>(in).backward();
}
