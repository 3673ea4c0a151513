// Settings of a conversion: what a pretrained model's softmax layers become.
#pragma once

#include <vector>

#include "cortado/base/fields.h"
#include "cortado/models/config.h"

namespace cortado {

struct ConversionSettings {
  Json mixer = Json::object();     // added to each converted layer's settings: {"mixer": "lolcats", "window": 64, ...}
  std::vector<int64_t> keep = {};  // layers that are not converted

  void fields(JsonFields& json);

  // Whether the layers get a cache with learned scores (convert/cache.h).
  bool with_cache() const;
  bool with_latents() const;
};

// The config in which settings.mixer replaces every "softmax" layer that is not kept, with the layer's own heads,
// sizes, biases, rotary positions and score settings. Other layers stay. Throws InputError if there is nothing to
// convert, if a kept layer does not exist or is no softmax layer, and for settings that the mixer refuses.
ModelConfig converted_config(const ModelConfig& source, const ConversionSettings& settings);

}  // namespace cortado
