// A Hugging Face folder: config.json, and the tensors of model.safetensors or of its shards.
#pragma once

#include <map>
#include <string>

#include "cortado/base/json.h"
#include "cortado/nn/batch.h"

namespace cortado {

// Reads FOLDER/config.json. Infinities, which Python writes and JSON does not have, become 1e308.
Json folder_config(const std::string& folder);

// Views of the tensors in the mapped files. Throws InputError for missing and damaged files.
std::map<std::string, Tensor> folder_tensors(const std::string& folder);

// Views of the tensors of a folder without config.json that has one file NAME.safetensors or NAME.st; empty for other
// folders. Throws InputError, which says how to get such a file, if the folder has a .pth file in its place.
std::map<std::string, Tensor> bare_tensors(const std::string& folder);

}  // namespace cortado
