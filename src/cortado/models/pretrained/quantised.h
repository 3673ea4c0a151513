// Hugging Face folders with quantised weights, "quantization_config" in config.json.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "cortado/base/json.h"
#include "cortado/models/pretrained/renamed.h"
#include "cortado/nn/batch.h"

namespace cortado {

// Weights with a scale per block:
// - floats of 8 bits, as DeepSeek and Qwen3 publish them. Matrix X.weight has its scales in X.weight_scale_inv, one per
//   block of `rows` × `columns`.
// - MXFP4, floats of 4 bits, as OpenAI publishes gpt-oss. X_blocks, bytes [..., B, 16], has the rows of X, 32 numbers in
//   each of B blocks; X_scales, bytes [..., B], has the blocks' exponents. Here it is one tensor X_blocks, [..., 32 B].
struct BlockScales {
  int64_t rows = 0, columns = 0;  // of a block of floats of 8 bits; 0: there are none
  bool mxfp4 = false;
  std::map<std::string, Tensor> scales = {};  // by the matrix's name

  // Takes the scales out of the tensors. Throws InputError for one that is missing or misshapen, or whose matrix is.
  void take(std::map<std::string, Tensor>& tensors, const std::string& folder);
  // Returns floats of 8 bits in float32, MXFP4 in bfloat16, which has all of its numbers, and other tensors as they are.
  // `index`: only this part of the first dimension, without that dimension.
  Tensor decode(const std::string& name, const Tensor& tensor, std::optional<int64_t> index = {}) const;
  // What decode() gives.
  TheirTensors::Kind decoded_kind(const std::string& name, const Tensor& tensor) const;

 private:
  void take_mxfp4(std::map<std::string, Tensor>& tensors, const std::string& folder);
};

// Reads "quantization_config", if the config has it. Throws InputError for other kinds of quantisation, and names what
// can be opened in place of the folder.
BlockScales read_quantisation(JsonReader& config);

}  // namespace cortado
