// The tensor types of GGUF files: plain numbers, and blocks of small integers with shared scales.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cortado {

using at::Tensor;

// One tensor type. README.md has the layouts.
struct GgmlType {
  uint32_t id;
  const char* name;
  int64_t values;  // in a block; 1: plain numbers
  int64_t bytes;   // of a block
  // Of one block, float32; null for plain numbers.
  void (*decode)(const uint8_t* block, float* values);
  at::ScalarType plain = at::kFloat;  // the type of plain numbers
};

// Null: not a type that is read here.
const GgmlType* find_ggml_type(uint32_t id);
// "Q2_K" or "type 99": for messages about types that are not read.
std::string ggml_type_name(uint32_t id);
// "F32, F16, ...": those that are.
std::string ggml_type_names();

// `bytes` as a tensor of its own: plain numbers in their type, blocks as float32. The bytes must be the shape's: whole
// blocks along the last dimension.
Tensor decode_ggml(const GgmlType& type, const std::vector<int64_t>& shape, std::string_view bytes);

}  // namespace cortado
