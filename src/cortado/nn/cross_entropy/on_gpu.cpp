#include "cortado/nn/cross_entropy/on_gpu.h"

#include "cortado/nn/cross_entropy/cross_entropy_gpu.h"
#include "cortado/primitives/cuda/runtime.h"
#include "cortado/primitives/cuda/tensors.h"

namespace cortado::entropy {

bool gpu_takes(const Tensor& logits) {
  const auto type = logits.scalar_type();
  return logits.is_cuda() && (type == at::kBFloat16 || type == at::kHalf) && cuda::has_numbers(logits) &&
         logits.dim() == 2 && logits.size(1) % 8 == 0 && logits.size(1) < (1 << 30) && logits.numel() > 0 &&
         logits.is_contiguous() && reinterpret_cast<uintptr_t>(logits.const_data_ptr()) % 16 == 0 &&
         cuda::usable(logits.device().index());
}

Tensor losses_on_gpu(const Tensor& logits, const Tensor& targets, bool differentiate, cuda::Machine& machine) {
  const c10::DeviceGuard guard(logits.device());
  const Tensor wanted = targets.contiguous();
  const Tensor made = at::empty({logits.size(0)}, logits.options().dtype(at::kFloat));
  const GpuCrossEntropy in{logits.mutable_data_ptr(), cuda::long_numbers(wanted), made.mutable_data_ptr<float>(),
                           int(logits.size(1)), differentiate};
  const bool half = logits.scalar_type() == at::kHalf;
  machine.launch(
      {"cross_entropy/kernel", half ? "CORTADO_HALF" : "", "cross_entropy", kGpuEntropyThreads, kGpuEntropyBytes},
      {unsigned(logits.size(0))}, &in);
  return made;
}

Tensor losses(const Tensor& logits, const Tensor& targets, bool differentiate) {
  return losses_on_gpu(logits, targets, differentiate, cuda::machine_of(logits));
}

}  // namespace cortado::entropy
