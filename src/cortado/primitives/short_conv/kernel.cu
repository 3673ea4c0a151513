// The short convolution, forward and backward; see conv_gpu-inl.h.
//
// Variants: TAPS=4 | TAPS=4 SHORT | TAPS=8 SHORT CORTADO_HALF | TAPS=1
#include "cortado/primitives/short_conv/conv_gpu-inl.h"

#ifndef TAPS
#define TAPS 4
#endif
#ifdef SHORT
#define IS_SHORT true
#else
#define IS_SHORT false
#endif

extern "C" __global__ void __launch_bounds__(128) short_conv_forward(const cortado::convolution::GpuConv in) {
  cortado::convolution::Conv<TAPS, IS_SHORT>(in).forward();
}

extern "C" __global__ void __launch_bounds__(128) short_conv_backward(const cortado::convolution::GpuConv in) {
  cortado::convolution::Conv<TAPS, IS_SHORT>(in).backward();
}
