// What is computed again in the backward, so that no more than its inputs is kept for it.
#pragma once

#include <functional>

#include "cortado/primitives/types.h"

namespace cortado {

// f(inputs), f a function of these tensors alone, in the types that they have whatever autocast says. Differentiating
// twice is an error.
Tensors recomputed(const Tensors& inputs, std::function<Tensors(const Tensors&)> f);

}  // namespace cortado
