// The kernel behind the forms of chunked.h, for torch's tensors.
#pragma once

#include "cortado/primitives/delta_scan/chunked.h"

namespace cortado::delta {

// Whether the kernel computes this; `others` are the tensors besides the inputs.
bool kernel_takes(const ScanInputs& in, const ScanOptions& options, std::initializer_list<Tensor> others = {});

// As scan and scan_backward, `factor` times; with bounds on every packed sequence. in.initial and the gradient of the
// final state may have fewer heads, each shared by several. Outputs come in the type of v, gradients in their
// argument's if that has all the heads, else in float32; the final state has the state's heads.
ScanOutputs scan_by_kernel(const ScanInputs& in, const ScanOptions& options, double factor,
                           const std::vector<int64_t>* bounds);
ScanGradients scan_backward_by_kernel(const ScanInputs& in, const ScanOutputs& gradient, const ScanOptions& options,
                                      double factor, const std::vector<int64_t>* bounds);

// One token, forward: kernel_takes(in, options) is asked too.
bool step_kernel_takes(const ScanInputs& in, const ScanOptions& options);
ScanOutputs step_by_kernel(const ScanInputs& in, const ScanOptions& options, double factor);

}  // namespace cortado::delta
