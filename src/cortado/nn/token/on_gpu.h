// What a token's layers take beside their scans, by kernels for GPUs: a call's few rows in one launch each. None of it is
// differentiated, and each says whether it takes its arguments; if not, its caller does the same by ATen.
#pragma once

#include <vector>

#include "cortado/primitives/cuda/machine.h"
#include "cortado/primitives/types.h"

namespace cortado::token {

struct Map {
  Tensor weight;  // [out, in]
  OptionalTensor bias;
  OptionalTensor onto = {};  // [..., out]: what is added to
};

// x [..., in] of up to 64 rows and one to four maps, in bfloat16 or all in float16, on a GPU that has kernels; `in` a
// multiple of 8, and of more than 16 rows up to 8,192 outputs in all; nothing is to be differentiated.
bool gpu_multiplies(const Tensor& x, const std::vector<Map>& maps);

// onto + x Wᵀ + b of each map, rounded before it is added.
std::vector<Tensor> linear(const Tensor& x, const std::vector<Map>& maps);
std::vector<Tensor> linear_on_gpu(const Tensor& x, const std::vector<Map>& maps, cuda::Machine& machine);

// silu(x W_gateᵀ + b) ⊙ (x W_upᵀ + b), two maps of the same size.
Tensor gated_silu(const Tensor& x, const Map& gate, const Map& up);
Tensor gated_silu_on_gpu(const Tensor& x, const Map& gate, const Map& up, cuda::Machine& machine);

// x / rms(x) ⊙ weight, x [..., D] in bfloat16 or float16 as its weight, each of `groups` parts of D, a multiple of 8, by
// itself. Any number of rows.
bool gpu_norms(const Tensor& x, const Tensor& weight, int64_t groups);

// The norm, and of what: of x, or with a `branch` of x + branch.
struct Normed {
  Tensor sum, y;
};
Normed rms_norm(const Tensor& x, const OptionalTensor& branch, const Tensor& weight, double eps, int64_t groups);
Normed rms_norm_on_gpu(const Tensor& x, const OptionalTensor& branch, const Tensor& weight, double eps, int64_t groups,
                       cuda::Machine& machine);

}  // namespace cortado::token
