// How weights start. All draws come from torch's default generator.
#pragma once

#include <ATen/core/Generator.h>
#include <torch/nn/module.h>

#include <cstdint>

#include "cortado/primitives/types.h"

namespace cortado {

// While one exists on this thread, the functions below leave tensors as they are: for models whose weights are about to
// be read from a file, or only counted.
class SkipInitialization {
 public:
  SkipInitialization();
  ~SkipInitialization();
  SkipInitialization(const SkipInitialization&) = delete;
  SkipInitialization& operator=(const SkipInitialization&) = delete;

 private:
  bool before_;
};

// While one exists torch's generator may be drawn from: it is left as it was. For modules whose first weights nobody wants.
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

// N(0, std²), in place and outside autograd.
void draw_normal(Tensor& x, double std);

// N(0, 1/fan_in).
void lecun_normal(Tensor& x, int64_t fan_in);

struct InitializationOptions {
  bool redraw = false;  // all Linear and Embedding weights N(0, std²), biases 0; otherwise they stay as they were made
  double std = 0.02;
  // The projections that end on the residual stream (Linear::residual_output) start smaller by 1/√(2·layers) (GPT-2).
  bool scale_residual = false;
  int64_t layers = 1;
};

// Walks the module's tree. Block-diagonal maps, norms and a mixer's own parameters keep the values they were made with.
void initialize(torch::nn::Module& module, const InitializationOptions& options);

}  // namespace cortado
