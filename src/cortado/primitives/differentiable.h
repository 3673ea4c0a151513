// Autograd of the primitives, written once: an operator X whose gradient is an operator too, X_backward.
#pragma once

#include <torch/library.h>

#include <string>
#include <vector>

namespace cortado {

// The Autograd kernel of X: computes as usual and, where a gradient will be wanted, notes how to call `gradient`
// ("cortado::X_backward"). That operator's arguments are told by their names in its schema:
//
//   grad_...  come first: the gradients of X's first results (zeros for one that is missing, unless it is optional)
//   need_...  whether X's argument `optional_work` requires a gradient
//   others    X's argument or result of that name
//
// and its results are the gradients of X's arguments `inputs`, in that order; those of absent arguments and of an
// `optional_work` that needs none are ignored. Use: m.impl("X", differentiable_by("cortado::X_backward", {"q", "k"})).
torch::CppFunction differentiable_by(std::string gradient, std::vector<std::string> inputs,
                                     std::string optional_work = "");

// The Meta kernel of X_backward: results in the shapes and types of those arguments (of the first that is no gradient,
// for one that X_backward does not have), [0] for what is absent or not needed.
torch::CppFunction gradients_like(std::vector<std::string> inputs, std::string optional_work = "");

}  // namespace cortado
