// Computes the form of form.h by GPU kernels on tensor cores.
#pragma once

#include "cortado/primitives/cuda/machine.h"
#include "cortado/primitives/gated_scan/form.h"

namespace cortado::gated {

// Whether the kernels compute this: 16-bit tensors on a GPU on which kernels can run, K and V at most 128; with beta
// one gate per head or none.
bool gpu_takes(const FormInputs& in, const FormOptions& options, double factor);

// The type that a scan's other operands should have so that the kernels take them together with v: v's type, or `other`
// if they would not take them anyway. `widths`: those of keys and values. For operands in [0, 1]: bfloat16 only.
at::ScalarType operand_type(const Tensor& v, std::initializer_list<int64_t> widths, at::ScalarType other);

// Computes as evaluate_by_kernel. Derivatives have the inputs' type; the gates' and the states are float32. `parts`:
// parts of time; 0: as many as fill the GPU.
FormOutputs evaluate_on_gpu(const FormInputs& given, const FormOptions& options, double factor,
                            const std::vector<int64_t>* bounds, cuda::Machine& machine, int64_t parts = 0);

}  // namespace cortado::gated
