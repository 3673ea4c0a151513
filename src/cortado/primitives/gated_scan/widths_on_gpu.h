// Widths that the kernels for GPUs read: rows of whole pieces of 16 bytes.
#pragma once

#include "cortado/primitives/gated_scan/form.h"

namespace cortado::gated {

// The inputs with so many zeros behind their K and V numbers that both are multiples of `piece`.
FormInputs widened(const FormInputs& in, int64_t piece);

// What comes of them, without what comes of the zeros.
FormOutputs narrowed(FormOutputs out, int64_t keys, int64_t values);

}  // namespace cortado::gated
