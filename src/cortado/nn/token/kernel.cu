// The layers of a single token, except its scans; see linear_gpu.h and norm_gpu.h.
// Variants: | CORTADO_HALF
#include "cortado/nn/token/linear_gpu-inl.h"
#include "cortado/nn/token/norm_gpu-inl.h"

extern "C" __global__ void __launch_bounds__(256) linear_of_8_rows(const cortado::token::GpuLinear in) {
  cortado::token::LinearOfFewRows<1>(in).run();
}

extern "C" __global__ void __launch_bounds__(256) linear_of_16_rows(const cortado::token::GpuLinear in) {
  cortado::token::LinearOfFewRows<2>(in).run();
}

extern "C" __global__ void __launch_bounds__(256) linear_of_32_rows(const cortado::token::GpuLinear in) {
  cortado::token::LinearOfFewRows<4>(in).run();
}

extern "C" __global__ void __launch_bounds__(256) linear_of_64_rows(const cortado::token::GpuLinear in) {
  cortado::token::LinearOfFewRows<8>(in).run();
}

extern "C" __global__ void __launch_bounds__(128) rms_norm(const cortado::token::GpuNorm in) {
  cortado::token::rms_norm(in);
}
