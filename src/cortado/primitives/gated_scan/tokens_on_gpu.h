// Computes the form of form.h, with or without beta, token by token in float32 by GPU kernels (tokens_gpu.h). Used for
// calls that the tensor-core kernels (on_gpu.h) don't take.
#pragma once

#include "cortado/primitives/cuda/machine.h"
#include "cortado/primitives/gated_scan/form.h"

namespace cortado::gated {

// Whether the kernels compute this: float32 sums on a GPU on which kernels can run, K and V at most 256; no gradient of
// gates that are factors.
bool tokens_take(const FormInputs& in, const FormOptions& options, double factor);

// Computes as evaluate_on_gpu, with all results in float32.
FormOutputs evaluate_by_tokens(const FormInputs& in, const FormOptions& options, double factor,
                               const std::vector<int64_t>* bounds, cuda::Machine& machine, int64_t parts = 0);

}  // namespace cortado::gated
