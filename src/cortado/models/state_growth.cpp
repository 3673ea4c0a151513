#include "cortado/models/state_growth.h"

#include <ATen/ATen.h>

namespace cortado {

namespace {

// Behind so many tokens every window is full, and whole blocks of a growing cache end.
constexpr int64_t kFull = int64_t{1} << 30;

// Of growing caches of so many tokens, in the type of the activations: what they add to a long sequence.
int64_t growing_bytes(const Backbone& model, int64_t tokens) {
  return model.state_bytes(kFull + tokens, model.dtype()) - model.state_bytes(kFull, model.dtype());
}

int64_t in_cache_type(const Backbone& model, int64_t bytes) {
  return bytes / static_cast<int64_t>(c10::elementSize(model.dtype())) *
         static_cast<int64_t>(c10::elementSize(cache_type(model)));
}

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
  const int64_t grown = growing_bytes(model, kFull);
  return {.constant = model.state_bytes(kFull, model.dtype()) - grown,
          .per_token = in_cache_type(model, grown) / kFull};
}

int64_t kept_bytes(const Backbone& model, int64_t tokens) {
  const int64_t grown = growing_bytes(model, tokens);
  return model.state_bytes(tokens, model.dtype()) - grown + in_cache_type(model, grown);
}

}  // namespace cortado
