// The operators that `cortado bench ops` measures and `cortado doctor` checks: every primitive, and every mechanism
// that is an operator.
#pragma once

#include "cortado/primitives/operator_case.h"

namespace cortado {

// Returns the cases of all operators.
const std::vector<OperatorCase>& operator_cases();

// Returns the cases named, each by case ("gated_scan/head") or by operation ("gated_scan": all of its cases); all cases
// if `names` is empty. Throws InputError with the nearest known name.
std::vector<const OperatorCase*> find_operator_cases(const std::vector<std::string>& names);

// The largest error of outputs and gradients, compared with the definition in float64 on the CPU. Each is relative to
// the largest value of its tensor; for gradients, to at least a hundredth of the largest gradient's. Infinite if not
// finite.
struct OperatorCheck {
  double error = 0;
  double tolerance = 0;  // depends on type and device
  bool passed() const { return error <= tolerance; }
};
OperatorCheck check_operator(const OperatorCase& which, OperatorSizes sizes, at::ScalarType dtype,
                             at::Device device = at::kCPU);

// Returns copies of the inputs in another type or on another device; with `differentiable`, as leaves that require
// gradients.
Tensors typed_inputs(const Tensors& inputs, const at::TensorOptions& options, bool differentiable);
// Returns the gradients of <o, grad_o> with respect to the inputs.
Tensors operator_gradients(const Tensor& o, const Tensor& grad_o, const Tensors& inputs);

}  // namespace cortado
