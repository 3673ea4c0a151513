// What goes through time channel by channel, on a GPU: the launches of timewise_gpu-inl.h's kernels.
#pragma once

#include "cortado/primitives/cuda/tensors.h"
#include "cortado/primitives/elementwise_scan/timewise_gpu.h"
#include "cortado/primitives/operator.h"

namespace cortado::timewise {

// Whether these are float32 on a GPU that has kernels. The rows are blocks of a grid, whose number has an end.
bool gpu_takes(std::initializer_list<Tensor> tensors, int64_t rows);

// [B,T,D] float32, its channels side by side.
GpuChannels gpu_channels(const Tensor& x);

// The times of one operation, with what has to live until it is launched.
struct GpuWalk {
  GpuTimes times{};
  cuda::GpuBounds bounds;
  Tensor carries;

  // `parts`: of time; 0: as many as fill the GPU.
  GpuWalk(const Tensor& like, const Bounds& bounds, bool reverse, cuda::Machine& machine, int64_t parts = 0);
  // Kernels NAME_summarize, NAME_join and NAME_apply, or where time has one part the last alone. `in`: the struct whose
  // first member is `times`.
  void launch(cuda::Machine& machine, const char* source, const std::string& name, const void* in) const;
};

}  // namespace cortado::timewise

namespace cortado::elementwise {

// As elementwise_scan and its gradient (op.h), float32.
std::pair<Tensor, Tensor> forward_on_gpu(const Tensor& log_a, const Tensor& b, const Tensor& initial,
                                         const Bounds& bounds, bool reverse, cuda::Machine& machine, int64_t parts = 0);
TensorTuple<3> backward_on_gpu(const Tensor& grad_h, const Tensor& grad_last, const Tensor& log_a, const Tensor& h,
                               const Tensor& initial, const Bounds& bounds, bool reverse, cuda::Machine& machine,
                               int64_t parts = 0);

}  // namespace cortado::elementwise
