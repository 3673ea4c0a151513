// The softmax over time; see elementwise_scan/timewise_gpu-inl.h.
#include "cortado/primitives/time_softmax/softmax_gpu-inl.h"

CORTADO_TIMEWISE(time_softmax, cortado::softmax::GpuSoftmax, cortado::softmax::SoftmaxOp)
