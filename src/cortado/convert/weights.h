// The weights of a converted model: the source's, frozen, and what is learned.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cortado/models/checkpoint.h"
#include "cortado/nn/lora.h"

namespace cortado {

// InputError: OUT is the folder that the weights come from.
void check_apart(const std::string& source, const std::string& out);

// Names of what the mixers have besides the softmax layers that they replace.
std::vector<std::string> names_of_new_weights(const LanguageModel& model);

// RUN's weights in their own types (map_weights), by the names that they have in the converted config.
TensorFile source_weights(const std::string& run, const std::string& which, const ModelConfig& source,
                          const ModelConfig& converted);

// A model of a converted config with the source's weights in `dtype`; what its mixers have besides starts as they say,
// in float32, drawn by `seed`. `frozen`: what the layers' matrices are kept in that were the source's; without
// derivatives unless kPlain. InputError: weights that don't fit.
std::shared_ptr<LanguageModel> converted_model(const ModelConfig& config, const TensorFile& source, int64_t seed,
                                               const at::TensorOptions& options,
                                               WeightFormat frozen = WeightFormat::kPlain);

// A checkpoint of `config`: the source's weights in their own types, and what was learned: `learned` beside them or in
// their place, and adapters, which are merged.
void save_converted(const ModelConfig& config, const TensorFile& source, const NamedTensors& learned,
                    const NamedLora& adapters, const LoraOptions& lora, const std::string& path,
                    const std::map<std::string, std::string>& metadata);

}  // namespace cortado
