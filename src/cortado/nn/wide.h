// The type of gates, decays, features and scan states: a 16-bit type cannot tell slow decays apart.
#pragma once

#include "cortado/primitives/types.h"

namespace cortado {

// float64 for float64, else float32.
inline at::ScalarType wide_type(at::ScalarType type) { return type == at::kDouble ? at::kDouble : at::kFloat; }
inline at::ScalarType wide_type(const Tensor& x) { return wide_type(x.scalar_type()); }

// x in its wide type.
inline Tensor widen(const Tensor& x) { return x.to(wide_type(x)); }

// Options of the scan states for inputs of `options`.
inline at::TensorOptions scan_options(const at::TensorOptions& options) {
  return options.dtype(wide_type(at::typeMetaToScalarType(options.dtype())));
}

}  // namespace cortado
