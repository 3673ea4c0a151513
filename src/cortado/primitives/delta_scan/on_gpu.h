// The delta scan's form by the kernels for GPUs.
#pragma once

#include "cortado/primitives/cuda/machine.h"
#include "cortado/primitives/gated_scan/form.h"

namespace cortado::delta {

// As gated::evaluate_on_gpu, of inputs with beta and a gate for each head or none.
gated::FormOutputs evaluate_on_gpu(const gated::FormInputs& in, const gated::FormOptions& options, double factor,
                                   const std::vector<int64_t>* bounds, cuda::Machine& machine, int64_t parts);

}  // namespace cortado::delta
