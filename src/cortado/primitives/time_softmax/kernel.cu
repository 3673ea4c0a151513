// The softmax over time: elementwise_scan/timewise_gpu-inl.h says how.
#include "cortado/primitives/time_softmax/softmax_gpu-inl.h"

CORTADO_TIMEWISE(time_softmax, cortado::softmax::GpuSoftmax, cortado::softmax::SoftmaxOp)
