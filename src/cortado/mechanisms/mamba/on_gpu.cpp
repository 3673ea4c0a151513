#include "cortado/mechanisms/mamba/on_gpu.h"

#include "cortado/mechanisms/mamba/kernel_gpu.h"
#include "cortado/primitives/cuda/runtime.h"
#include "cortado/primitives/cuda/tensors.h"

namespace cortado::mamba_kernel {

namespace {

// the value of STATES
int compiled_states(int64_t states) { return states <= 16 ? 16 : states <= 32 ? 32 : kGpuMostStates; }

// One call of the kernels, with the tensors that its arguments point to.
struct Call {
  SelectiveScan in;
  Tensor start;
  cuda::GpuBounds bounds;
  GpuSelective task{};

  Call(const SelectiveScan& given, const Tensor& first, const std::vector<int64_t>* row_bounds)
      : in{given.x.contiguous(), given.step.contiguous(), given.a.contiguous(), given.b.contiguous(),
           given.c.contiguous()},
        start(first.contiguous()),
        bounds(row_bounds, in.x.size(1), in.x.device()) {
    const auto data = [](const Tensor& x) { return x.const_data_ptr<float>(); };
    task.x = data(in.x);
    task.step = data(in.step);
    task.a = data(in.a);
    task.b = data(in.b);
    task.c = data(in.c);
    task.start = data(start);
    task.bounds = bounds.get();
    task.tokens = int(in.x.size(1));
    task.channels = int(in.a.size(0));
    task.states = int(in.a.size(1));
  }

  int64_t blocks() const { return (task.channels + kGpuSelectiveChannels - 1) / kGpuSelectiveChannels; }

  // Allocates memory for the states before the stages of all rows.
  Tensor kept() const {
    const int stage = gpu_stage_tokens(compiled_states(task.states));
    const int64_t rows = start.size(0);
    const int64_t stages = task.bounds ? task.tokens / stage + rows + 1 : rows * ((task.tokens + stage - 1) / stage);
    return at::empty({stages, task.channels, task.states}, in.x.options());
  }

  void launch(cuda::Machine& machine, const char* name) const {
    const int states = compiled_states(task.states);
    machine.launch({"mamba/kernel", "STATES=" + std::to_string(states), name, kGpuSelectiveThreads,
                    size_t(gpu_selective_bytes(states))},
                   {unsigned(blocks()), unsigned(start.size(0))}, &task);
  }
};

}  // namespace

bool gpu_takes(const SelectiveScan& in, const Tensor& start) {
  return cuda::are_there({in.x, in.step, in.a, in.b, in.c, start}, {at::kFloat}) && in.a.size(1) <= kGpuMostStates &&
         start.size(0) <= cuda::kMostRows;
}

TensorTuple<2> scan_on_gpu(const SelectiveScan& in, const Tensor& start, const std::vector<int64_t>* bounds,
                           cuda::Machine& machine) {
  const c10::DeviceGuard guard(in.x.device());
  Call call(in, start, bounds);
  const Tensor y = at::empty(in.x.sizes(), in.x.options()), last = at::empty(start.sizes(), start.options());
  call.task.y = y.mutable_data_ptr<float>();
  call.task.last = last.mutable_data_ptr<float>();
  call.launch(machine, "selective_scan");
  return {y, last};
}

std::vector<Tensor> differentiate_on_gpu(const SelectiveScan& in, const Tensor& start,
                                         const std::vector<int64_t>* bounds, const Tensor& dy, const Tensor& dlast,
                                         cuda::Machine& machine) {
  const c10::DeviceGuard guard(in.x.device());
  Call call(in, start, bounds);
  const auto room = [&](at::IntArrayRef sizes) { return at::empty(sizes, in.x.options()); };
  const Tensor kept = call.kept();
  call.task.kept = kept.mutable_data_ptr<float>();
  call.launch(machine, "selective_scan");

  const Tensor grad = dy.contiguous(), grad_last = dlast.defined() ? dlast.contiguous() : dlast;
  const Tensor dx = room(in.x.sizes()), dstep = room(in.x.sizes()), da = room(start.sizes()),
               dstart = room(start.sizes());
  const int64_t states = call.task.states;
  const Tensor parts = room({call.blocks(), in.x.size(0), in.x.size(1), 2 * states});
  call.task.dy = grad.const_data_ptr<float>();
  call.task.dlast = grad_last.defined() ? grad_last.const_data_ptr<float>() : nullptr;
  call.task.dx = dx.mutable_data_ptr<float>();
  call.task.dstep = dstep.mutable_data_ptr<float>();
  call.task.da = da.mutable_data_ptr<float>();
  call.task.dstart = dstart.mutable_data_ptr<float>();
  call.task.parts = parts.mutable_data_ptr<float>();
  call.task.part = parts.stride(0);
  call.launch(machine, "selective_gradient");
  const Tensor both = parts.sum(0);
  return {dx, dstep, da.sum(0), both.narrow(2, 0, states), both.narrow(2, states, states), dstart};
}

}  // namespace cortado::mamba_kernel
