// Everything of a module that a checkpoint holds.
#pragma once

#include <torch/nn/module.h>

#include <string>

#include "cortado/formats/safetensors.h"
#include "cortado/nn/module.h"

namespace cortado {

// Returns the parameters by name, followed by the buffers: what is drawn once and never trained (random features).
inline torch::OrderedDict<std::string, at::Tensor> named_weights(const torch::nn::Module& module) {
  auto weights = module.named_parameters();
  for (const auto& buffer : module.named_buffers()) weights.insert(buffer.key(), buffer.value());
  return weights;
}

// Returns the parameters for a file, without their roles, which follow from the module.
inline NamedTensors tensors_of(const Parameters& parameters) {
  NamedTensors tensors;
  for (const Parameter& parameter : parameters) tensors.emplace_back(parameter.name, parameter.value);
  return tensors;
}

}  // namespace cortado
