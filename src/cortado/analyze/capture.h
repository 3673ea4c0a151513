// What a mixer computes on its way: the operators that it calls, with their arguments.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <string>
#include <vector>

namespace cortado {

// One call of an operator. Tensors are those of the computation, so that gradients go through them.
struct OperatorCall {
  std::string name;  // "cortado::gated_scan"
  std::vector<std::string> arguments;
  std::vector<c10::IValue> inputs, outputs;

  bool has(const std::string& argument) const;
  // The tensor of that name; undefined where there is none.
  at::Tensor tensor(const std::string& argument) const;
  // Whether one of the inputs is this very tensor.
  bool takes(const at::Tensor& tensor) const;
};

// Runs `compute` and returns every operator that it called in this thread, in the order in which they ended.
std::vector<OperatorCall> captured(const std::function<void()>& compute);

}  // namespace cortado
