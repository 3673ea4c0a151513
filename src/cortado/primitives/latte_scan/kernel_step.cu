// One token of Latte; see step_gpu.h.
#include "cortado/primitives/latte_scan/step_gpu-inl.h"

extern "C" __global__ void __launch_bounds__(128) latte_step(const cortado::latent::GpuLatteStep in) {
  cortado::latent::LatteStep(in).run();
}
