// The scans by ATen, in chunks, for types, sizes and devices that no kernel takes. Memory is O(T).
#pragma once

#include "cortado/primitives/gated_scan/scan.h"

namespace cortado::gated {

// Returns the reads that the form wants and the last state, in the type of the sums.
FormOutputs read_by_aten(const ScanCall& call, const Bounds& bounds);

// Returns the form's derivatives, each in its argument's shape and type.
FormOutputs differentiate_by_aten(const ScanCall& call, const Bounds& bounds, const Tensor& grad_o,
                                  const Tensor& grad_state);

}  // namespace cortado::gated
