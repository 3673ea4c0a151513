#include "cortado/primitives/elementwise_scan/on_gpu.h"

#include "cortado/primitives/cuda/runtime.h"
#include "cortado/primitives/cuda/tensors.h"
#include "cortado/primitives/elementwise_scan/kernel_gpu.h"

namespace cortado::timewise {

bool gpu_takes(std::initializer_list<Tensor> tensors, int64_t rows) {
  return rows > 0 && rows <= cuda::kMostRows && cuda::are_there(tensors, {at::kFloat});
}

GpuChannels gpu_channels(const Tensor& x) {
  return {x.data_ptr<float>(), x.size(0) == 1 ? 0 : x.stride(0), x.stride(1)};
}

GpuWalk::GpuWalk(const Tensor& like, const Bounds& rows, bool reverse, cuda::Machine& machine, int64_t parts)
    : bounds(rows.get(), like.size(1), like.device()) {
  const int64_t count = rows.rows(like.size(0)), channels = like.size(2);
  const int64_t groups = (channels + kGpuTimewiseThreads - 1) / kGpuTimewiseThreads;
  // A multiprocessor needs about 1,500 threads to hide memory latency; a part should be long enough to pay for its
  // summary. Packed rows are cut as if each were alone, so that results do not depend on packing.
  const int64_t wanted = int64_t{12} * machine.multiprocessors() / (bounds.get() ? groups : count * groups);
  const int64_t shortest = parts ? 1 : 64;
  times.bounds = bounds.get();
  times.rows = int(count);
  times.tokens = int(like.size(1));
  times.channels = int(channels);
  times.parts = int(
      std::clamp<int64_t>(parts ? parts : wanted, 1, std::max<int64_t>(1, (bounds.longest + shortest - 1) / shortest)));
  times.part_tokens = int(shortest);
  times.reverse = reverse;
  if (times.parts > 1) {
    carries = at::empty({count, times.parts, channels, 2}, like.options().dtype(at::kFloat));
    times.carries = carries.mutable_data_ptr<float>();
  }
}

void GpuWalk::launch(cuda::Machine& machine, const char* source, const std::string& name, const void* in) const {
  const auto groups = [&](int channels) { return unsigned((times.channels + channels - 1) / channels); };
  const auto run = [&](const char* which, unsigned y, unsigned z) {
    const std::string kernel = name + which;
    machine.launch({source, "", kernel.c_str(), kGpuTimewiseThreads}, {groups(kGpuTimewiseThreads), y, z}, in);
  };
  const unsigned parts = unsigned(times.parts), rows = unsigned(times.rows);
  if (times.parts > 1) {
    run("_summarize", parts, rows);
    const std::string join = name + "_join";
    machine.launch({source, "", join.c_str(), kGpuJoinThreads, kGpuJoinBytes}, {groups(32), rows}, in);
  }
  run("_apply", parts, rows);
}

}  // namespace cortado::timewise

namespace cortado::elementwise {

namespace {

constexpr const char* kSource = "elementwise_scan/kernel";

Tensor in_rows(const Tensor& x) {
  const Tensor floats = x.to(at::kFloat);
  return floats.stride(2) == 1 || floats.size(2) == 1 ? floats : floats.contiguous();
}
// Whether the kernels that read each number only once take these: rows and channels fill the GPU, and rows are
// multiples of 16 bytes.
bool streams(std::initializer_list<Tensor> tensors, const GpuTimes& times, const cuda::Machine& machine) {
  const int64_t groups = (times.channels + kGpuStreamChannels - 1) / kGpuStreamChannels;
  const bool fills = (times.bounds ? 1 : times.rows) * groups >= machine.multiprocessors() * 3 / 4;
  return fills && times.channels % 4 == 0 && std::all_of(tensors.begin(), tensors.end(), [](const Tensor& x) {
           return x.stride(0) % 4 == 0 && x.stride(1) % 4 == 0 && reinterpret_cast<uintptr_t>(x.data_ptr()) % 16 == 0;
         });
}

void launch_stream(cuda::Machine& machine, const char* name, const GpuTimes& times, int tensors, const void* in) {
  const unsigned groups = unsigned((times.channels + kGpuStreamChannels - 1) / kGpuStreamChannels);
  machine.launch({kSource, "", name, kGpuStreamThreads, size_t(gpu_stream_bytes(tensors))},
                 {groups, unsigned(times.rows)}, in);
}

Tensor dense(const Tensor& x) { return x.defined() ? x.to(at::kFloat).contiguous() : x; }
}  // namespace

std::pair<Tensor, Tensor> forward_on_gpu(const Tensor& log_a, const Tensor& b, const Tensor& initial,
                                         const Bounds& bounds, bool reverse, cuda::Machine& machine, int64_t parts) {
  const c10::DeviceGuard guard(b.device());
  const Tensor logs = in_rows(log_a), adds = in_rows(b), start = dense(initial);
  const timewise::GpuWalk walk(b, bounds, reverse, machine, parts);
  const Tensor h = at::empty(b.sizes(), adds.options()), last = at::empty({walk.times.rows, b.size(2)}, adds.options());
  using timewise::gpu_channels;
  const GpuScan in{walk.times,      gpu_channels(logs),  gpu_channels(adds),
                   gpu_channels(h), cuda::floats(start), last.mutable_data_ptr<float>()};
  if (!parts && streams({logs, adds}, walk.times, machine)) {
    launch_stream(machine, "scan_stream", walk.times, 2, &in);
  } else {
    walk.launch(machine, kSource, "scan", &in);
  }
  return {h, last};
}

TensorTuple<3> backward_on_gpu(const Tensor& grad_h, const Tensor& grad_last, const Scanned& scan, const Bounds& bounds,
                               bool reverse, cuda::Machine& machine, int64_t parts) {
  const auto& [log_a, h, initial] = scan;
  const c10::DeviceGuard guard(h.device());
  const Tensor logs = in_rows(log_a), outputs = in_rows(h), grads = in_rows(grad_h);
  const Tensor start = dense(initial), last = dense(grad_last);
  const timewise::GpuWalk walk(h, bounds, !reverse, machine, parts);
  const auto room = [&](at::IntArrayRef sizes) { return at::empty(sizes, outputs.options()); };
  const Tensor grad_log_a = room(h.sizes()), grad_b = room(h.sizes()),
               grad_initial = room({walk.times.rows, h.size(2)});
  using timewise::gpu_channels;
  const GpuScanGradient in{walk.times,          gpu_channels(logs),       gpu_channels(outputs),
                           gpu_channels(grads), gpu_channels(grad_log_a), gpu_channels(grad_b),
                           cuda::floats(start), cuda::floats(last),       grad_initial.mutable_data_ptr<float>(),
                           reverse ? -1 : 1};
  if (!parts && streams({logs, outputs, grads}, walk.times, machine)) {
    launch_stream(machine, "scan_gradient_stream", walk.times, 3, &in);
  } else {
    walk.launch(machine, kSource, "scan_gradient", &in);
  }
  return {grad_log_a, grad_b, grad_initial};
}

}  // namespace cortado::elementwise
