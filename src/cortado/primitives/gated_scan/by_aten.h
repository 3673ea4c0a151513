// The scans by ATen, in chunks: for the types, sizes and devices that no kernel takes. Memory is O(T).
#pragma once

#include "cortado/primitives/gated_scan/scan.h"

namespace cortado::gated {

// The reads, where the form has them, and the last state, in the type of the sums.
FormOutputs read_by_aten(const ScanCall& call, const Bounds& bounds);

// The derivatives where the form has them, each in its argument's shape and type.
FormOutputs differentiate_by_aten(const ScanCall& call, const Bounds& bounds, const Tensor& grad_o,
                                  const Tensor& grad_state);

}  // namespace cortado::gated
