// By what a gated scan or a slot scan is computed: a kernel that takes it, or ATen.
#pragma once

#include "cortado/primitives/gated_scan/chunked.h"

namespace cortado::gated {

// As on_cpu.h's differentiate_by_kernel; by ATen every result comes in the type of the sums.
FormOutputs compute_form(FormInputs in, const FormOptions& options, double factor, const std::vector<int64_t>* bounds);

}  // namespace cortado::gated
