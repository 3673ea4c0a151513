#include "cortado/models/pretrained/quantised.h"

#include "cortado/base/error.h"

namespace cortado {
namespace {

constexpr const char* kScale = "_scale_inv";
constexpr const char *kBlocks = "_blocks", *kExponents = "_scales";
constexpr int64_t kBlockBytes = 16;  // of MXFP4, two numbers each

Tensor repeated(const Tensor& scale, int64_t times, int64_t dimension, int64_t size) {
  return scale.repeat_interleave(times, dimension).narrow(dimension, 0, size);
}

// MXFP4: bytes [..., B, 16] and exponents [..., B] -> [..., 32 B]. A byte's low half is the first of its two numbers.
Tensor decode_mxfp4(const Tensor& bytes, const Tensor& exponents) {
  const Tensor values = at::tensor({0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f, -1.0f, -1.5f, -2.0f,
                                    -3.0f, -4.0f, -6.0f})
                            .to(at::kBFloat16);
  const Tensor halves = at::stack({bytes.bitwise_and(15), bytes.bitwise_right_shift(4)}, -1);
  const Tensor numbers = values.index_select(0, halves.flatten().to(at::kInt)).view_as(halves).flatten(-2);
  return at::ldexp(numbers.to(at::kFloat), (exponents.to(at::kInt) - 127).unsqueeze(-1)).to(at::kBFloat16).flatten(-2);
}

}  // namespace

BlockScales read_quantisation(JsonReader& config) {
  if (!config.has("quantization_config")) return {};
  JsonReader quantisation(config.object("quantization_config"), config.place() + ".quantization_config");
  const std::string method = quantisation.text("quant_method", "unknown");
  if (method == "mxfp4") return {.mxfp4 = true};
  const Json size = quantisation.any("weight_block_size");
  const bool blocks = size.is_array() && size.size() == 2 && size[0].is_number_unsigned() &&
                      size[1].is_number_unsigned() && size[0] > 0 && size[1] > 0;
  const bool read = method == "fp8" && blocks && quantisation.text("fmt", "e4m3") == "e4m3";
  quantisation.fail_if(
      !read, "weights quantised by \"", method,
      "\" are not read, only \"mxfp4\", and \"fp8\" with \"weight_block_size\" and floats e4m3; the original model's ",
      "folder opens, and so does a GGUF file with blocks of 2 to 8 bits");
  return {.rows = size[0].get<int64_t>(), .columns = size[1].get<int64_t>()};
}

void BlockScales::take_mxfp4(std::map<std::string, Tensor>& tensors, const std::string& folder) {
  for (const auto& [name, bytes] : tensors) {
    if (!name.ends_with(kBlocks)) continue;
    const std::string exponents = name.substr(0, name.size() - std::string(kBlocks).size()) + kExponents;
    const auto found = tensors.find(exponents);
    fail_input_if(found == tensors.end(), "[import] ", folder, ": there is no ", exponents, ", the scales of ", name);
    const bool fits = bytes.dim() > 1 && bytes.size(-1) == kBlockBytes &&
                      found->second.sizes() == bytes.sizes().slice(0, bytes.dim() - 1);
    fail_input_if(!fits || bytes.scalar_type() != at::kByte || found->second.scalar_type() != at::kByte, "[import] ",
                  folder, ": ", name, " is ", bytes.scalar_type(), " ", bytes.sizes(), " and ", exponents, " is ",
                  found->second.scalar_type(), " ", found->second.sizes(), ", expected bytes [..., 16] and [...]");
    scales[name] = found->second;
  }
  for (const auto& [name, _] : scales) {
    tensors.erase(name.substr(0, name.size() - std::string(kBlocks).size()) + kExponents);
  }
}

void BlockScales::take(std::map<std::string, Tensor>& tensors, const std::string& folder) {
  if (mxfp4) return take_mxfp4(tensors, folder);
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

TheirTensors::Kind BlockScales::decoded_kind(const std::string& name, const Tensor& tensor) const {
  Shape shape = tensor.sizes().vec();
  if (!mxfp4 || !scales.contains(name)) return {shape, tensor.scalar_type()};
  shape.pop_back();
  shape.back() *= 2 * kBlockBytes;
  return {shape, at::kBFloat16};
}

Tensor BlockScales::decode(const std::string& name, const Tensor& tensor, std::optional<int64_t> index) const {
  const auto found = scales.find(name);
  const auto part = [&](const Tensor& x) { return index ? x.select(0, *index) : x; };
  if (found == scales.end()) return part(tensor);
  if (mxfp4) return decode_mxfp4(part(tensor), part(found->second));
  const Tensor scale = repeated(found->second.to(at::kFloat), rows, 0, tensor.size(0));
  return part(tensor.to(at::kFloat) * repeated(scale, columns, 1, tensor.size(1)));
}

}  // namespace cortado
