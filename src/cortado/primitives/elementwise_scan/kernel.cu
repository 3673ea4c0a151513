// The elementwise scan and its gradient: timewise_gpu-inl.h says how.
#include "cortado/primitives/elementwise_scan/scan_gpu-inl.h"

CORTADO_TIMEWISE(scan, cortado::elementwise::GpuScan, cortado::elementwise::ScanOp)
CORTADO_TIMEWISE(scan_gradient, cortado::elementwise::GpuScanGradient, cortado::elementwise::ScanGradientOp)
