// Names of the weights' types on the command line and in files.
#pragma once

#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "cortado/base/error.h"

namespace cortado {

inline const std::vector<std::pair<std::string, at::ScalarType>>& dtype_names() {
  static const std::vector<std::pair<std::string, at::ScalarType>> names = {
      {"float32", at::kFloat}, {"bfloat16", at::kBFloat16}, {"float16", at::kHalf}};
  return names;
}

inline at::ScalarType dtype_of(const std::string& name) {
  for (const auto& [known, type] : dtype_names()) {
    if (known == name) return type;
  }
  throw InputError(concat("[dtype] expected float32, bfloat16 or float16, got \"", name, "\""));
}

inline std::string dtype_name(at::ScalarType type) {
  for (const auto& [name, known] : dtype_names()) {
    if (known == type) return name;
  }
  return c10::toString(type);
}

}  // namespace cortado
