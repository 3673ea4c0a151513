// Launches the GPU kernels that walk through time channel by channel (timewise_gpu-inl.h).
#pragma once

#include "cortado/primitives/cuda/tensors.h"
#include "cortado/primitives/elementwise_scan/timewise_gpu.h"
#include "cortado/primitives/operator.h"

namespace cortado::timewise {

// Whether all tensors are float32 on a GPU on which kernels can run, and `rows` fit into a grid.
bool gpu_takes(std::initializer_list<Tensor> tensors, int64_t rows);

// x [B,T,D] float32 with contiguous channels.
GpuChannels gpu_channels(const Tensor& x);

// The walk through time of one operation. It owns the memory that must live until the launch.
struct GpuWalk {
  GpuTimes times{};
  cuda::GpuBounds bounds;
  Tensor carries;

  // `parts`: parts of time; 0: as many as fill the GPU.
  GpuWalk(const Tensor& like, const Bounds& bounds, bool reverse, cuda::Machine& machine, int64_t parts = 0);
  // Launches the kernels NAME_summarize, NAME_join and NAME_apply, or only NAME_apply if time has one part. `in`: the
  // argument struct, whose first member is `times`.
  void launch(cuda::Machine& machine, const char* source, const std::string& name, const void* in) const;
};

}  // namespace cortado::timewise

namespace cortado::elementwise {

// A scan whose gradient is wanted: its inputs and h, its result.
struct Scanned {
  const Tensor &log_a, &h, &initial;
};

// elementwise_scan and its gradient (op.h), float32.
std::pair<Tensor, Tensor> forward_on_gpu(const Tensor& log_a, const Tensor& b, const Tensor& initial,
                                         const Bounds& bounds, bool reverse, cuda::Machine& machine, int64_t parts = 0);
TensorTuple<3> backward_on_gpu(const Tensor& grad_h, const Tensor& grad_last, const Scanned& scan, const Bounds& bounds,
                               bool reverse, cuda::Machine& machine, int64_t parts = 0);

}  // namespace cortado::elementwise
