// What `cortado bench ops` measures and `cortado doctor` tries: every primitive and every mechanism that is an
// operator.
#pragma once

#include "cortado/primitives/operator_case.h"

namespace cortado {

const std::vector<OperatorCase>& operator_cases();

// Those named: by case ("gated_scan/head") or by operation ("gated_scan": all its cases); every case if none is named.
// InputError names the nearest.
std::vector<const OperatorCase*> find_operator_cases(const std::vector<std::string>& names);

// The largest error of outputs and gradients against the definition in float64 on the CPU, each over the largest value of
// its tensor (a gradient far below the largest of them, over a hundredth of that one's). Infinite where not finite.
struct OperatorCheck {
  double error = 0;
  double tolerance = 0;  // what type and device allow
  bool passed() const { return error <= tolerance; }
};
OperatorCheck check_operator(const OperatorCase& which, OperatorSizes sizes, at::ScalarType dtype,
                             at::Device device = at::kCPU);

// Copies of the inputs with another type or device, as leaves of a graph if so wished.
Tensors typed_inputs(const Tensors& inputs, const at::TensorOptions& options, bool differentiable);
// <o, grad_o> differentiated with respect to the inputs.
Tensors operator_gradients(const Tensor& o, const Tensor& grad_o, const Tensors& inputs);

}  // namespace cortado
