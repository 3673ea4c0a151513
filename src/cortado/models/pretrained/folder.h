// A Hugging Face folder: config.json, and the tensors of model.safetensors or of its shards.
#pragma once

#include <map>
#include <string>

#include "cortado/base/json.h"
#include "cortado/nn/batch.h"

namespace cortado {

// FOLDER/config.json. Python writes infinities, which JSON has not: they become 1e308.
Json folder_config(const std::string& folder);

// Views of the mapped files. What is missing or damaged: InputError.
std::map<std::string, Tensor> folder_tensors(const std::string& folder);

}  // namespace cortado
