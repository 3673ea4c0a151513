// The kernel behind the form of chunked.h, for torch's tensors.
#pragma once

#include "cortado/primitives/gated_scan/chunked.h"
#include "cortado/primitives/gated_scan/kernel.h"

namespace cortado::gated {

// Whether the kernel computes this: float32 sums on the CPU, one of the two reads.
bool kernel_takes(const FormInputs& in, const FormOptions& options);
// As differentiate_form, or with bounds differentiate_sequences, with `factor` on the first sum of L, and a missing y
// or w being 0. Derivatives come in the type of their argument if that has all the heads, else in float32, that of an
// absent y or w in v's; the final state has the state's heads.
FormOutputs differentiate_by_kernel(const FormInputs& in, const FormOptions& options, double factor,
                                    const std::vector<int64_t>* bounds);

// What this hands to the kernel: room for the outputs, and the tensors whose data the call points to (and in's).
struct KernelCall {
  FormOutputs out;
  Tensor bonus, initial, final_grad;
  ScanKernel scan;
};
KernelCall kernel_call(const FormInputs& in, const FormOptions& options, double factor,
                       const std::vector<int64_t>* bounds, int64_t state_heads);

// One token, forward, by the kernel, if it takes that: in.initial has the state's heads here.
bool step_kernel_takes(const FormInputs& in, const FormOptions& options);
FormOutputs step_by_kernel(const FormInputs& in, const FormOptions& options, double factor);

}  // namespace cortado::gated
