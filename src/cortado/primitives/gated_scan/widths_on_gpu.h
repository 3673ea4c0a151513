// Pads K and V to widths that GPU kernels read: rows that are multiples of 16 bytes.
#pragma once

#include "cortado/primitives/gated_scan/form.h"

namespace cortado::gated {

// The inputs with K and V padded with zeros to multiples of `piece`.
FormInputs widened(const FormInputs& in, int64_t piece);

// The outputs without the padding of widened().
FormOutputs narrowed(FormOutputs out, int64_t keys, int64_t values);

}  // namespace cortado::gated
