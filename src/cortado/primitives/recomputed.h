// Gradients of plain ATen code at the memory of its inputs: what is differentiated is computed again.
#pragma once

#include <functional>

#include "cortado/primitives/types.h"

namespace cortado {

// Results of some tensors, of which some may be undefined.
using Computation = std::function<Tensors(const Tensors&)>;

// f(inputs), of which only the inputs are kept; the backward computes f again and differentiates that, once.
Tensors recomputed(const Computation& f, const Tensors& inputs);

// The gradients of the floating-point inputs, given those of f's results (undefined: none); [i] is undefined where no
// result depends on input i. Computes f. Also for use in an operator's kernel, where autograd is off.
Tensors gradients_of(const Computation& f, const Tensors& inputs, const Tensors& grad_results);

}  // namespace cortado
