// The form of form.h by the kernels for GPUs.
#pragma once

#include "cortado/primitives/cuda/machine.h"
#include "cortado/primitives/gated_scan/form.h"

namespace cortado::gated {

// Whether they compute this: 16-bit tensors on a GPU that has kernels, K and V up to 128; with beta a gate for each head or
// none.
bool gpu_takes(const FormInputs& in, const FormOptions& options, double factor);

// The type that a scan's other operands should have beside these values, for the kernels to take them: that of v, or where
// they would not anyway, `other`. `widths`: the keys' and the values'. For operands in [0, 1]: bfloat16 alone.
at::ScalarType operand_type(const Tensor& v, std::initializer_list<int64_t> widths, at::ScalarType other);

// As evaluate_by_kernel. Derivatives come in the inputs' type; the gates', and states, in float32. `parts`: of time; 0: as many
// as fill the GPU.
FormOutputs evaluate_on_gpu(const FormInputs& given, const FormOptions& options, double factor,
                            const std::vector<int64_t>* bounds, cuda::Machine& machine, int64_t parts = 0);

}  // namespace cortado::gated
