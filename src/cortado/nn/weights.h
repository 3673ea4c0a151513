// Everything that a checkpoint holds of a module.
#pragma once

#include <torch/nn/module.h>

#include <string>

#include "cortado/formats/safetensors.h"
#include "cortado/nn/module.h"

namespace cortado {

// The parameters by name, and behind them the buffers: what is drawn once and never trained (random features).
inline torch::OrderedDict<std::string, at::Tensor> named_weights(const torch::nn::Module& module) {
  auto weights = module.named_parameters();
  for (const auto& buffer : module.named_buffers()) weights.insert(buffer.key(), buffer.value());
  return weights;
}

// Parameters for a file: without their roles, which follow from what they are parameters of.
inline NamedTensors tensors_of(const Parameters& parameters) {
  NamedTensors tensors;
  for (const Parameter& parameter : parameters) tensors.emplace_back(parameter.name, parameter.value);
  return tensors;
}

}  // namespace cortado
