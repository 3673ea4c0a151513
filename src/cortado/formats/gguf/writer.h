// Writes GGUF files, version 3.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "cortado/formats/gguf/file.h"

namespace cortado {

// A value of the metadata. Its alternative is its type in the file: llama.cpp refuses numbers of another type.
using GgufSetting = std::variant<std::string, uint32_t, float, bool, std::vector<std::string>, std::vector<int32_t>,
                                 std::vector<float>, std::vector<bool>>;
using GgufSettings = std::vector<std::pair<std::string, GgufSetting>>;

// A tensor to write. `values` is called once, when the tensor's turn comes, and gives it in any floating type.
struct GgufPart {
  std::string name;
  std::vector<int64_t> shape;  // in torch's order
  const GgmlType* type;        // one of those of writable_type()
  std::function<Tensor()> values;
};

// The type of this name, in lower case: "f32", "f16", "bf16", "q8_0", "q4_0" or "q4_1". Null for others.
const GgmlType* writable_type(const std::string& name);
// "f32, f16, ...".
std::string writable_types();

// Encodes numbers: a contiguous tensor of bytes. The last dimension must have whole blocks. The bits are those of
// llama.cpp's reference quantizers. Throws Failure for numbers that are not finite.
Tensor encode_ggml(const GgmlType& type, const Tensor& values);

// Writes a file that appears at `path` when it is complete (AtomicFile). Only one tensor is in memory at a time.
void write_gguf(const std::string& path, const GgufSettings& settings, const std::vector<GgufPart>& tensors);

}  // namespace cortado
