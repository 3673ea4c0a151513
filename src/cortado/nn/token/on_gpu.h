// A single token's layers, except their scans, by GPU kernels: one launch per call on a few rows. Not differentiable.
// Each kernel has a function that says whether it takes its arguments; if not, the caller computes by ATen.
#pragma once

#include <vector>

#include "cortado/primitives/cuda/machine.h"
#include "cortado/primitives/types.h"

namespace cortado::token {

struct Map {
  Tensor weight;  // [out, in]
  OptionalTensor bias;
  OptionalTensor onto = {};  // [..., out]: added to the result
};

// Whether the kernel takes x [..., in] of up to 64 rows and one to four maps, all in bfloat16 or all in float16, on a
// GPU on which kernels can run. `in` is a multiple of 8; with more than 16 rows there are at most 8,192 outputs in all;
// no gradient is wanted.
bool gpu_multiplies(const Tensor& x, const std::vector<Map>& maps);

// onto + x Wᵀ + b for each map, rounded before the addition of `onto`.
std::vector<Tensor> linear(const Tensor& x, const std::vector<Map>& maps);
std::vector<Tensor> linear_on_gpu(const Tensor& x, const std::vector<Map>& maps, cuda::Machine& machine);

// silu(x W_gateᵀ + b) ⊙ (x W_upᵀ + b), two maps of equal size.
Tensor gated_silu(const Tensor& x, const Map& gate, const Map& up);
Tensor gated_silu_on_gpu(const Tensor& x, const Map& gate, const Map& up, cuda::Machine& machine);

// Whether the kernel computes x / rms(x) ⊙ weight: x [..., D] and its weight both in bfloat16 or both in float16; each
// of the `groups` parts of D, a multiple of 8, is normalised alone. Any number of rows.
bool gpu_norms(const Tensor& x, const Tensor& weight, int64_t groups);

// The norm y and its input `sum`: x, or with a `branch` x + branch.
struct Normed {
  Tensor sum, y;
};
Normed rms_norm(const Tensor& x, const OptionalTensor& branch, const Tensor& weight, double eps, int64_t groups);
Normed rms_norm_on_gpu(const Tensor& x, const OptionalTensor& branch, const Tensor& weight, double eps, int64_t groups,
                       cuda::Machine& machine);

}  // namespace cortado::token
