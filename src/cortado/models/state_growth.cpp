#include "cortado/models/state_growth.h"

#include <ATen/ATen.h>

namespace cortado {

namespace {

// After this many tokens every window is full, and a growing cache ends at a whole block.
constexpr int64_t kFull = int64_t{1} << 30;

}  // namespace

at::ScalarType cache_type(const Backbone& model) {
  const ModelState state = model.zero_state(0);
  const auto options = at::TensorOptions().dtype(model.dtype());
  for (size_t layer = 0; layer < state.layers.size(); ++layer) {
    const SequenceState as_activations = model.mixers()[layer]->zero_state(0, options);
    for (const auto& [name, tensor] : state.layers[layer].tensors()) {
      if (tensor.scalar_type() != as_activations.at(name).scalar_type()) return tensor.scalar_type();
    }
  }
  return model.dtype();
}

StateGrowth state_growth(const Backbone& model) {
  const int64_t grown = kept_bytes(model, 2 * kFull) - kept_bytes(model, kFull);
  return {.constant = kept_bytes(model, kFull) - grown, .per_token = grown / kFull};
}

int64_t kept_bytes(const Backbone& model, int64_t tokens) {
  return model.state_bytes(tokens, model.dtype(), model.cache_type());
}

}  // namespace cortado
