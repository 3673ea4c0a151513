// Measures which library multiplies float32 matrices fastest on this machine, and whether bfloat16 is faster.
#pragma once

#include <string>

#include "cortado/primitives/types.h"

namespace cortado {

// Seconds of one product of two matrices of about a layer's size on torch's threads: by torch's BLAS (MKL), by oneDNN,
// and by torch in bfloat16. Measured once per process (30 ms); infinite if not available.
struct MatmulSpeeds {
  double blas, onednn, bfloat16;
};
const MatmulSpeeds& matmul_speeds();

// Whether to use oneDNN for float32. MKL is used on Intel processors, oneDNN if MKL runs on another vendor's, unless
// this process measures the other to be clearly faster. CORTADO_MATMUL=blas|onednn overrides this.
bool onednn_is_faster();

// The library in use, "blas" or "onednn". keep_matmul_library keeps the library that a checkpoint was trained with,
// because on a busy machine the measurement might choose the other. It does nothing if CORTADO_MATMUL is set or `name`
// is not available.
std::string matmul_library();
void keep_matmul_library(const std::string& name);

// The type of "auto" in training: bfloat16 if the CPU multiplies it clearly faster than float32, else float32. float32
// if CORTADO_MATMUL is set: then no measurement matters, and two runs are equal on a busy machine.
at::ScalarType fast_training_type();

// x Wᵀ + b by oneDNN: x [..., in], weight [out, in], bias [out] or none, float32 on the CPU. Needs a torch with oneDNN.
bool has_onednn();
Tensor onednn_linear(const Tensor& x, const Tensor& weight, const OptionalTensor& bias);

}  // namespace cortado
