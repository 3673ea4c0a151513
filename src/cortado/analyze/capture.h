// Records the operators that a mixer calls, with their arguments.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <string>
#include <vector>

namespace cortado {

// One call of an operator. The tensors are part of the autograd graph, so gradients flow through them.
struct OperatorCall {
  std::string name;  // "cortado::gated_scan"
  std::vector<std::string> arguments;
  std::vector<c10::IValue> inputs, outputs;

  bool has(const std::string& argument) const;
  // Returns the tensor argument of that name; undefined if there is none.
  at::Tensor tensor(const std::string& argument) const;
  // Whether `tensor` itself is one of the inputs.
  bool takes(const at::Tensor& tensor) const;
};

// Runs `compute` and returns all operator calls of this thread, in the order in which they ended.
std::vector<OperatorCall> captured(const std::function<void()>& compute);

}  // namespace cortado
