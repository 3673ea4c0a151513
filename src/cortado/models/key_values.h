// What a state saves: the keys and values that softmax attention would keep.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "cortado/models/config.h"

namespace cortado {

// Bytes of the keys and values of `tokens` tokens in `type`, if softmax layers stood in the places of all layers: with
// the heads, key heads and head sizes of those that name them, else with every head of the model's width.
int64_t key_value_bytes(const ModelConfig& config, int64_t tokens, at::ScalarType type);

}  // namespace cortado
