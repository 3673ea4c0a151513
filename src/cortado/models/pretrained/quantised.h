// Hugging Face folders with quantised weights, "quantization_config" in config.json.
#pragma once

#include <map>
#include <string>

#include "cortado/base/json.h"
#include "cortado/nn/batch.h"

namespace cortado {

// Floats of 8 bits with one scale per block of a matrix, as DeepSeek and Qwen3 publish them. Matrix X.weight has its
// scales in X.weight_scale_inv.
struct BlockScales {
  int64_t rows = 0, columns = 0;              // of a block; 0: nothing is quantised
  std::map<std::string, Tensor> scales = {};  // by the matrix's name

  // Takes the scales out of the tensors. Throws InputError for one that is missing or misshapen, or whose matrix is.
  void take(std::map<std::string, Tensor>& tensors, const std::string& folder);
  // Returns the matrix in float32, and other tensors as they are.
  Tensor decode(const std::string& name, const Tensor& tensor) const;
};

// Reads "quantization_config", if the config has it. Throws InputError for other kinds of quantisation, and names what
// can be opened in place of the folder.
BlockScales read_quantisation(JsonReader& config);

}  // namespace cortado
