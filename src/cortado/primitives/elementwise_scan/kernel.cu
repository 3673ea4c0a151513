// The elementwise scan and its gradient; see timewise_gpu-inl.h.
#include "cortado/primitives/elementwise_scan/scan_gpu-inl.h"
#include "cortado/primitives/elementwise_scan/stream_gpu-inl.h"

CORTADO_TIMEWISE(scan, cortado::elementwise::GpuScan, cortado::elementwise::ScanOp)
CORTADO_TIMEWISE(scan_gradient, cortado::elementwise::GpuScanGradient, cortado::elementwise::ScanGradientOp)

extern "C" __global__ void __launch_bounds__(64) scan_stream(const cortado::elementwise::GpuScan in) {
  cortado::elementwise::stream_scan(in);
}

extern "C" __global__ void __launch_bounds__(64) scan_gradient_stream(const cortado::elementwise::GpuScanGradient in) {
  cortado::elementwise::stream_scan_gradient(in);
}
