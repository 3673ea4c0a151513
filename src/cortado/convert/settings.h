// What a pretrained model's softmax layers become.
#pragma once

#include <optional>
#include <vector>

#include "cortado/base/fields.h"
#include "cortado/models/config.h"

namespace cortado {

struct ConversionSettings {
  Json mixer = Json::object();     // {"mixer": "lolcats", "window": 64, ...}: what is added to each layer's settings
  std::vector<int64_t> keep = {};  // layers that stay as they are
  // What single layers have besides, by their numbers: {"3": {"cache": [50, 1024, 50]}}.
  Json layers = Json::object();

  void fields(JsonFields& json);

  // The pairs that a key head is to keep in a cache on average, whose score and whose share by head are not learned yet.
  std::optional<int64_t> cache_to_learn() const;
};

// The config with every "softmax" layer but the kept ones replaced by settings.mixer, with the layer's own heads,
// sizes, biases, rotary positions and scores. Layers of other mixers stay. InputError: no softmax layer is left to
// convert, a layer to keep is not there or no softmax layer, settings that the mixer refuses.
ModelConfig converted_config(const ModelConfig& source, const ConversionSettings& settings);

}  // namespace cortado
