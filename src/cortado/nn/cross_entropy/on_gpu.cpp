#include "cortado/nn/cross_entropy/on_gpu.h"

#include "cortado/nn/cross_entropy/cross_entropy_gpu.h"
#include "cortado/primitives/cuda/runtime.h"
#include "cortado/primitives/cuda/tensors.h"

namespace cortado::entropy {

bool gpu_takes(const Tensor& logits) {
  return cuda::is_there(logits) && cuda::is_short(logits.scalar_type()) && logits.dim() == 2 &&
         logits.size(1) % 8 == 0 && logits.size(1) < (1 << 30) && cuda::is_dense(logits);
}

Tensor losses_on_gpu(const Tensor& logits, const Tensor& targets, bool differentiate, cuda::Machine& machine) {
  const c10::DeviceGuard guard(logits.device());
  const Tensor wanted = targets.contiguous();
  const Tensor made = at::empty({logits.size(0)}, logits.options().dtype(at::kFloat));
  const GpuCrossEntropy in{logits.mutable_data_ptr(), cuda::long_numbers(wanted), made.mutable_data_ptr<float>(),
                           int(logits.size(1)), differentiate};
  machine.launch({"cross_entropy/kernel", cuda::variant_of(logits.scalar_type()), "cross_entropy", kGpuEntropyThreads,
                  kGpuEntropyBytes},
                 {unsigned(logits.size(0))}, &in);
  return made;
}

Tensor losses(const Tensor& logits, const Tensor& targets, bool differentiate) {
  return losses_on_gpu(logits, targets, differentiate, cuda::machine_of(logits));
}

}  // namespace cortado::entropy
