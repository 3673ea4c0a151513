// One token of the gated scan, the slot scan and the delta scan; see step_gpu.h.
#include "cortado/primitives/gated_scan/step_gpu-inl.h"

extern "C" __global__ void __launch_bounds__(128) scan_step(const cortado::gated::GpuStep in) {
  cortado::gated::Step(in).run();
}
