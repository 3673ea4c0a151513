// Initial values of weights. All draws come from torch's default generator.
#pragma once

#include <ATen/core/Generator.h>
#include <torch/nn/module.h>

#include <cstdint>

#include "cortado/primitives/types.h"

namespace cortado {

// While an object exists on this thread, the functions below leave tensors unchanged: for models whose weights are
// about to be read from a file, or only counted.
class SkipInitialization {
 public:
  SkipInitialization();
  ~SkipInitialization();
  SkipInitialization(const SkipInitialization&) = delete;
  SkipInitialization& operator=(const SkipInitialization&) = delete;

 private:
  bool before_;
};

// Restores torch's generator when destroyed, so that draws meanwhile have no effect on later ones: for modules whose
// first weights are not used.
class KeptGenerator {
 public:
  KeptGenerator();
  ~KeptGenerator();
  KeptGenerator(const KeptGenerator&) = delete;
  KeptGenerator& operator=(const KeptGenerator&) = delete;

 private:
  at::Generator generator_;
  Tensor state_;
};

// Draws N(0, std²) in place, outside autograd.
void draw_normal(Tensor& x, double std);

// Draws N(0, 1/fan_in) in place.
void lecun_normal(Tensor& x, int64_t fan_in);

struct InitializationOptions {
  bool redraw = false;  // draw all Linear and Embedding weights N(0, std²), biases 0; else keep them as constructed
  double std = 0.02;
  // Divide the std of projections onto the residual stream (Linear::residual_output) by √(2·layers) (GPT-2).
  bool scale_residual = false;
  int64_t layers = 1;
};

// Initialises the module's tree. Block-diagonal maps, norms and a mixer's own parameters keep their constructed values.
void initialize(torch::nn::Module& module, const InitializationOptions& options);

}  // namespace cortado
