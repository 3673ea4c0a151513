// The kernels behind the form of chunked.h, the gated scan's and the delta scan's, for torch's tensors.
#pragma once

#include "cortado/primitives/gated_scan/chunked.h"

namespace cortado::gated {

// Whether a kernel computes this: float32 sums on the CPU, one of the two reads. `step`: the kernels of one token.
bool kernel_takes(const FormInputs& in, const FormOptions& options, bool step);

// As differentiate_form, or with bounds differentiate_sequences, with `factor` on the first sum of L, and a missing y
// or w being 0. in.initial and in.final_grad may have fewer heads, each shared by several; for a step the former has
// the state's. Derivatives come in the type of their argument if that has all the heads, else in float32, that of an
// absent y or w in v's; the final state has the state's heads.
FormOutputs differentiate_by_kernel(const FormInputs& in, const FormOptions& options, double factor,
                                    const std::vector<int64_t>* bounds, bool step);

}  // namespace cortado::gated
