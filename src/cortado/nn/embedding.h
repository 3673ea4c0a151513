// Token embeddings.
#pragma once

#include <torch/nn/module.h>

#include <cmath>

#include "cortado/nn/initialization.h"

namespace cortado {

// int64 indices [...] -> [..., dim]; weight [count, dim], initialised N(0, 1/dim), so that a tied head starts with
// logits of order one. `scaled`: the result is multiplied by √dim (in the weights' type, as Gemma does).
class Embedding : public torch::nn::Module {
 public:
  Embedding(int64_t count, int64_t dim, bool scaled = false) : torch::nn::Module("Embedding"), scaled_(scaled) {
    weight = register_parameter("weight", at::empty({count, dim}));
    lecun_normal(weight, dim);
  }

  Tensor forward(const Tensor& indices) const {
    const Tensor x = at::embedding(weight, indices);
    return scaled_ ? x * at::scalar_tensor(std::sqrt(static_cast<double>(weight.size(1))), x.options()) : x;
  }

  Tensor weight;

 private:
  bool scaled_;
};

}  // namespace cortado
