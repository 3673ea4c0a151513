// What multiplies matrices fastest on this machine: which library in float32, and whether bfloat16 is worth its name.
#pragma once

#include <string>

#include "cortado/primitives/types.h"

namespace cortado {

// Seconds of one product of two matrices of about a layer's size on the threads that torch has: by torch's BLAS (MKL),
// by oneDNN, and by torch in bfloat16. Measured once in a process, 30 ms; infinite for what is not there.
struct MatmulSpeeds {
  double blas, onednn, bfloat16;
};
const MatmulSpeeds& matmul_speeds();

// Whether oneDNN is the one to take in float32: MKL on Intel's processors, oneDNN where MKL meets another, or what this
// process measures to be clearly faster. CORTADO_MATMUL=blas|onednn decides instead.
bool onednn_is_faster();

// The library that is taken, "blas" or "onednn". What goes on from a checkpoint keeps the one that it began with, for on
// a busy machine the clock might choose the other: nothing changes where CORTADO_MATMUL says it, or there is no such one.
std::string matmul_library();
void keep_matmul_library(const std::string& name);

// bfloat16 where the CPU multiplies it clearly faster than float32, else float32: what training's "auto" means. float32
// where CORTADO_MATMUL says the library: then the clock decides nothing, and two runs are the same on a busy machine.
at::ScalarType fast_training_type();

// x Wᵀ + b by oneDNN: x [..., in], weight [out, in], bias [out] or none, float32 on the CPU. For a torch that has it.
bool has_onednn();
Tensor onednn_linear(const Tensor& x, const Tensor& weight, const OptionalTensor& bias);

}  // namespace cortado
