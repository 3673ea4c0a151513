// What a pretrained model's softmax layers become.
#pragma once

#include <vector>

#include "cortado/base/fields.h"
#include "cortado/models/config.h"

namespace cortado {

struct ConversionSettings {
  Json mixer = Json::object();     // {"mixer": "lolcats", "window": 64, ...}: what is added to each layer's settings
  std::vector<int64_t> keep = {};  // layers that stay as they are

  void fields(JsonFields& json);

  // Whether the layers get a cache whose score is learned (convert/cache.h).
  bool with_cache() const;
  bool with_latents() const;
};

// The config with every "softmax" layer but the kept ones replaced by settings.mixer, with the layer's own heads,
// sizes, biases, rotary positions and scores. Layers of other mixers stay. InputError: no softmax layer is left to
// convert, a layer to keep is not there or no softmax layer, settings that the mixer refuses.
ModelConfig converted_config(const ModelConfig& source, const ConversionSettings& settings);

}  // namespace cortado
