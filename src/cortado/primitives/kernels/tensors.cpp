#include "cortado/primitives/kernels/tensors.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>

#include "cortado/base/isa.h"
#include "cortado/primitives/kernels/kept_memory.h"

namespace cortado::kernels {

bool usable(std::initializer_list<Tensor> tensors) {
  if (!kernels_enabled()) return false;
  for (const Tensor& x : tensors) {
    if (!x.defined()) continue;
    const auto type = x.scalar_type();
    if (!x.is_cpu() || x.layout() != at::kStrided || x.numel() == 0) return false;
    if (type != at::kFloat && type != at::kBFloat16 && type != at::kHalf) return false;
  }
  return true;
}

Tensor room(at::IntArrayRef sizes, const at::TensorOptions& options) {
  const std::size_t bytes = static_cast<std::size_t>(c10::multiply_integers(sizes)) * options.dtype().itemsize();
  const at::Context& torch = at::globalContext();
  const bool poisoned = torch.deterministicAlgorithms() && torch.deterministicFillUninitializedMemory();
  if (bytes < kLeastKept || !options.device().is_cpu() || poisoned) return at::empty(sizes, options);
  return at::detail::empty_generic(sizes, kept_memory(), c10::DispatchKeySet(c10::DispatchKey::CPU),
                                   c10::typeMetaToScalarType(options.dtype()), std::nullopt);
}

Timed timed(const Tensor& x, int64_t heads) {
  if (!x.defined()) return {};
  const auto type = x.scalar_type();
  return {.data = x.data_ptr(),
          .type = type == at::kFloat      ? Element::kFloat32
                  : type == at::kBFloat16 ? Element::kBFloat16
                                          : Element::kFloat16,
          .row = x.size(0) == 1 ? 0 : x.stride(0),
          .token = x.stride(1),
          .head = x.stride(2),
          .inner = x.dim() == 4 ? x.stride(3) : 1,
          .repeat = heads / x.size(2)};
}

Tensor dense_rows(const Tensor& x) { return x.stride(-1) == 1 || x.size(-1) == 1 ? x : x.contiguous(); }

Channels channels(const Tensor& x) { return {x.data_ptr<float>(), x.stride(0), x.stride(1)}; }

States states(const Tensor& x, int64_t heads) {
  if (!x.defined()) return {};
  return {.data = x.data_ptr<float>(), .heads = x.size(1), .repeat = heads / x.size(1)};
}

Parallel parallel() {
  return {.threads = at::get_num_threads(), .run = [](int64_t workers, void (*work)(void*, int64_t), void* task) {
            at::parallel_for(0, workers, 1, [=](int64_t begin, int64_t end) {
              for (int64_t i = begin; i < end; ++i) work(task, i);
            });
          }};
}

Parallel parallel(int64_t products) {
  constexpr int64_t kWorthAThread = 1 << 16;
  if (products >= kWorthAThread) return parallel();
  return {.threads = 1, .run = [](int64_t workers, void (*work)(void*, int64_t), void* task) {
            for (int64_t i = 0; i < workers; ++i) work(task, i);
          }};
}

}  // namespace cortado::kernels
