// The delta scan by GPU kernels.
#pragma once

#include "cortado/primitives/cuda/machine.h"
#include "cortado/primitives/gated_scan/form.h"

namespace cortado::delta {

// Computes as gated::evaluate_on_gpu, for inputs with beta and with one gate per head or none.
gated::FormOutputs evaluate_on_gpu(const gated::FormInputs& in, const gated::FormOptions& options, double factor,
                                   const std::vector<int64_t>* bounds, cuda::Machine& machine, int64_t parts);

}  // namespace cortado::delta
