// The form of form.h, with or without beta, token by token in float32 by the kernels for GPUs (tokens_gpu.h): what those
// on tensor cores (on_gpu.h) don't take.
#pragma once

#include "cortado/primitives/cuda/machine.h"
#include "cortado/primitives/gated_scan/form.h"

namespace cortado::gated {

// Whether they compute this: sums in float32 on a GPU that has kernels, K and V up to 256; no gradient of gates that are
// factors.
bool tokens_take(const FormInputs& in, const FormOptions& options, double factor);

// As evaluate_on_gpu; everything comes in float32.
FormOutputs evaluate_by_tokens(const FormInputs& in, const FormOptions& options, double factor,
                               const std::vector<int64_t>* bounds, cuda::Machine& machine, int64_t parts = 0);

}  // namespace cortado::gated
