#include "cortado/primitives/gated_scan/on_gpu.h"

#include "cortado/primitives/cuda/runtime.h"
#include "cortado/primitives/delta_scan/kernel_gpu.h"
#include "cortado/primitives/delta_scan/on_gpu.h"
#include "cortado/primitives/gated_scan/calls_on_gpu.h"
#include "cortado/primitives/gated_scan/widths_on_gpu.h"

namespace cortado::gated {

namespace {

// Whether a block's shared memory suffices and, for the delta rule, the grid, whose y has its chunks or rows.
bool fits(const FormInputs& in) {
  const int most = cuda::machine_of(in.x).shared_bytes();
  if (in.beta.defined()) {
    const bool in_grid = in.x.size(0) <= cuda::kMostRows && in.x.size(1) / kGpuChunk < cuda::kMostRows;
    if (!in_grid || most < delta::gpu_delta_shared_bytes(wide(in.x.size(3)))) return false;
  }
  if (!in.g.defined() || in.g.dim() == 3) return most >= gpu_shared_bytes(wide(std::max(in.x.size(3), in.v.size(3))));
  return most >= std::max(gpu_channel_shared_bytes(wide(in.x.size(3)), true),
                          gpu_channel_shared_bytes(wide(in.v.size(3)), false));
}

}  // namespace

bool gpu_takes(const FormInputs& in, const FormOptions& options, double factor) {
  const auto type = in.x.scalar_type();
  const auto narrow = [](const Tensor& x) { return !x.defined() || x.size(3) <= kWidest; };
  return cuda::is_short(type) && options.type == at::kFloat && !(options.want_y && options.want_w) &&
         options.decay == DecayKind::kLogs && !in.bonus.defined() &&
         cuda::are_there({in.x, in.v, in.y, in.w}, {type}) && narrow(in.x) && narrow(in.v) && narrow(in.y) &&
         narrow(in.w) && factor != 0 && fits(in);
}

at::ScalarType operand_type(const Tensor& v, std::initializer_list<int64_t> widths, at::ScalarType other) {
  const bool fit = std::all_of(widths.begin(), widths.end(), [](int64_t w) { return w % 8 == 0 && w <= kWidest; });
  return fit && v.scalar_type() == at::kBFloat16 && cuda::has_kernels(v.device()) ? at::kBFloat16 : other;
}

FormOutputs evaluate_on_gpu(const FormInputs& given, const FormOptions& options, double factor,
                            const std::vector<int64_t>* bounds, cuda::Machine& machine, int64_t parts) {
  const c10::DeviceGuard guard(given.x.device());
  const FormInputs in = widened(given, 8);
  const auto compute = [&] {
    if (in.beta.defined()) return delta::evaluate_on_gpu(in, options, factor, bounds, machine, parts);
    Calls calls(in, options, factor, bounds, machine, parts);
    return differentiate_by(calls, in, options, bounds);
  };
  return narrowed(compute(), given.x.size(3), given.v.size(3));
}

}  // namespace cortado::gated
