#include "cortado/mechanisms/shared/one_token.h"

#include <c10/core/GradMode.h>

#include <algorithm>

#include "cortado/primitives/kernels/tensors.h"

namespace cortado::one_token {

bool takes(const Tensor& x, const Batch& batch, const SequenceState* state) {
  if (!state || x.dim() != 3 || x.size(1) != 1 || batch.cu_seqlens || batch.parts || at::GradMode::is_enabled()) {
    return false;
  }
  if (x.scalar_type() != at::kFloat || !x.is_contiguous() || !kernels::usable({x})) return false;
  return std::all_of(state->tensors().begin(), state->tensors().end(), [](const auto& entry) {
    const Tensor& tensor = entry.second;
    return tensor.is_cpu() && tensor.scalar_type() == at::kFloat && tensor.is_contiguous();
  });
}

float* scratch(int64_t count) {
  thread_local std::vector<float> room;
  if (room.size() < static_cast<size_t>(count)) room.resize(static_cast<size_t>(count));
  return room.data();
}

}  // namespace cortado::one_token
