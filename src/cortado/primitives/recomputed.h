// Gradients of plain ATen code that keep only the inputs in memory: the backward recomputes the forward.
#pragma once

#include <functional>

#include "cortado/primitives/types.h"

namespace cortado {

// Computes result tensors from input tensors; some of either may be undefined.
using Computation = std::function<Tensors(const Tensors&)>;

// Returns f(inputs) and keeps only the inputs for the backward, which recomputes f and differentiates it (once only).
Tensors recomputed(const Computation& f, const Tensors& inputs);

// Recomputes f and returns the gradients of its floating-point inputs, given the gradients of its results (undefined:
// zero). Entry i is zero if no result depends on input i, and undefined if that input is. Also works inside an operator's
// kernel, where autograd is off.
Tensors gradients_of(const Computation& f, const Tensors& inputs, const Tensors& grad_results);

}  // namespace cortado
