// The type that gates, decays, features and scan states have: a short type cannot tell slow decays apart.
#pragma once

#include "cortado/primitives/types.h"

namespace cortado {

// Float32, float64 for float64.
inline at::ScalarType wide_type(at::ScalarType type) { return type == at::kDouble ? at::kDouble : at::kFloat; }
inline at::ScalarType wide_type(const Tensor& x) { return wide_type(x.scalar_type()); }

// x in that type.
inline Tensor widen(const Tensor& x) { return x.to(wide_type(x)); }

// Of the scan states for inputs of `options`.
inline at::TensorOptions scan_options(const at::TensorOptions& options) {
  return options.dtype(wide_type(at::typeMetaToScalarType(options.dtype())));
}

}  // namespace cortado
