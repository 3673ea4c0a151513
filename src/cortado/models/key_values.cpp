#include "cortado/models/key_values.h"

namespace cortado {
namespace {

// Hkv d: what one key of a layer has.
int64_t key_width(const Json& layer, const ModelConfig& config) {
  const auto heads = layer.value("heads", config.heads), key_heads = layer.value("kv_heads", heads);
  return layer.contains("head_dim") ? key_heads * layer["head_dim"].get<int64_t>() : config.dim * key_heads / heads;
}

}  // namespace

int64_t key_value_bytes(const ModelConfig& config, int64_t tokens, at::ScalarType type) {
  int64_t width = 0;
  for (const Json& layer : config.layers) width += key_width(layer, config);
  return 2 * width * tokens * static_cast<int64_t>(c10::elementSize(type));
}

}  // namespace cortado
