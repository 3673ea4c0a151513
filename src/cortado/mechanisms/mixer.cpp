#include "cortado/mechanisms/mixer.h"

namespace cortado {

Tensor Mixer::forward(const Tensor& x, const Batch& batch, SequenceState* state) {
  Tensor y = mix(x, batch, state);
  if (Tensor* position = state ? state->find(StateLayout::kPosition) : nullptr) {
    *position = batch.cu_seqlens ? *position + batch.lengths(x) : *position + x.size(1);
  }
  return y;
}

double Mixer::weight_flops() const {
  int64_t weights = 0;
  const auto count = [&](const auto& tensors) {
    for (const auto& tensor : tensors) {
      if (tensor.key().ends_with(".weight") && tensor.value().dim() > 1) weights += tensor.value().numel();
    }
  };
  count(named_parameters());
  count(named_buffers());  // features that are drawn, not learned
  return 2.0 * static_cast<double>(weights);
}

}  // namespace cortado
