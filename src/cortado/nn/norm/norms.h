// Normalisation over the last dimension.
#pragma once

#include "cortado/nn/module.h"
#include "cortado/nn/norm/op.h"
#include "cortado/primitives/types.h"

namespace cortado {

// x [..., D] -> [..., D].
class Norm : public Module {
 public:
  using Module::Module;
  virtual Tensor forward(const Tensor& x) const = 0;

  // For a residual stream: returns x + branch (x if branch is undefined) and its norm.
  virtual NormedSum forward_of_sum(const Tensor& x, const Tensor& branch) const {
    const Tensor sum = branch.defined() ? x + branch : x;
    return {sum, forward(sum)};
  }

  Tensor weight;
};

// rms_norm (op.h) with a weight [D], initialised to 1.
class RmsNorm : public Norm {
 public:
  explicit RmsNorm(int64_t dim, double eps = 1e-6, int64_t groups = 1);
  Tensor forward(const Tensor& x) const override;
  NormedSum forward_of_sum(const Tensor& x, const Tensor& branch) const override;

 private:
  double eps_;
  int64_t groups_;
};

// (x - mean)/√(variance + eps)·weight [D] + bias [D]; weight is initialised to 1, bias to 0.
class LayerNorm : public Norm {
 public:
  explicit LayerNorm(int64_t dim, double eps = 1e-5, bool with_bias = true);
  Tensor forward(const Tensor& x) const override;

  OptionalTensor bias;

 private:
  double eps_;
};

}  // namespace cortado
