#include "cortado/models/pretrained/quantised.h"

#include "cortado/base/error.h"

namespace cortado {
namespace {

constexpr const char* kScale = "_scale_inv";

Tensor repeated(const Tensor& scale, int64_t times, int64_t dimension, int64_t size) {
  return scale.repeat_interleave(times, dimension).narrow(dimension, 0, size);
}

}  // namespace

BlockScales read_quantisation(JsonReader& config) {
  if (!config.has("quantization_config")) return {};
  JsonReader quantisation(config.object("quantization_config"), config.place() + ".quantization_config");
  const std::string method = quantisation.text("quant_method", "unknown");
  const Json size = quantisation.any("weight_block_size");
  const bool blocks = size.is_array() && size.size() == 2 && size[0].is_number_unsigned() &&
                      size[1].is_number_unsigned() && size[0] > 0 && size[1] > 0;
  const bool read = method == "fp8" && blocks && quantisation.text("fmt", "e4m3") == "e4m3";
  quantisation.fail_if(
      !read, "weights quantised by \"", method,
      "\" are not read, only \"fp8\" with \"weight_block_size\" and floats e4m3; the original model's ",
      "folder opens, and so does a GGUF file with blocks of 2 to 8 bits");
  return {size[0].get<int64_t>(), size[1].get<int64_t>()};
}

void BlockScales::take(std::map<std::string, Tensor>& tensors, const std::string& folder) {
  const auto blocks = [](int64_t size, int64_t of_block) { return (size + of_block - 1) / of_block; };
  for (auto it = tensors.begin(); rows > 0 && it != tensors.end();) {
    const auto& [name, tensor] = *it;
    if (!name.ends_with(kScale)) {
      ++it;
      continue;
    }
    const std::string matrix = name.substr(0, name.size() - std::string(kScale).size());
    const auto found = tensors.find(matrix);
    fail_input_if(found == tensors.end() || found->second.dim() != 2, "[import] ", folder, ": ", name,
                  " has scales for no matrix");
    const std::vector<int64_t> expected = {blocks(found->second.size(0), rows), blocks(found->second.size(1), columns)};
    fail_input_if(tensor.sizes() != at::IntArrayRef(expected) || !at::isFloatingType(tensor.scalar_type()), "[import] ",
                  folder, ": ", name, " is ", tensor.scalar_type(), " ", tensor.sizes(), ", expected ",
                  at::IntArrayRef(expected));
    scales[matrix] = tensor;
    it = tensors.erase(it);
  }
  for (const auto& [name, tensor] : tensors) {
    fail_input_if(tensor.scalar_type() == at::kFloat8_e4m3fn && !scales.contains(name), "[import] ", folder, ": ", name,
                  " has floats of 8 bits, and there is no ", name, kScale);
  }
}

Tensor BlockScales::decode(const std::string& name, const Tensor& tensor) const {
  const auto found = scales.find(name);
  if (found == scales.end()) return tensor;
  const Tensor scale = repeated(found->second.to(at::kFloat), rows, 0, tensor.size(0));
  return tensor.to(at::kFloat) * repeated(scale, columns, 1, tensor.size(1));
}

}  // namespace cortado
