// The chunked form of the delta scan, forward and backward.
#pragma once

#include "cortado/primitives/gated_scan/chunked.h"

namespace cortado::delta {

// What gated::differentiate_form does on one stretch of time, for inputs with beta: o as w, or with want_rest the
// gradients of y, x, v, beta, initial and, if wanted, g.
gated::FormOutputs differentiate_segment(const gated::FormInputs& in, const gated::FormOptions& options);

}  // namespace cortado::delta
