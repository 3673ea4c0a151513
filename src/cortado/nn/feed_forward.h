// The feed-forward branch of a block: mlp, swiglu, geglu.
#pragma once

#include <torch/nn/module.h>

#include <memory>

#include "cortado/nn/linear.h"

namespace cortado {

enum class Activation { kGeluTanh, kGelu, kSilu };  // kGelu: x·Φ(x) by erf; kGeluTanh: its tanh approximation

Tensor activate(const Tensor& x, Activation activation);

struct FeedForwardOptions {
  int64_t dim = 0;     // D
  int64_t hidden = 0;  // F
  bool gated = false;
  Activation activation = Activation::kGeluTanh;
  bool bias = false;
};

// x [..., D]: plain  down(act(up x)),  gated (swiglu, geglu)  down(act(gate x) ⊙ up x).
class FeedForward : public torch::nn::Module {
 public:
  explicit FeedForward(const FeedForwardOptions& options);
  Tensor forward(const Tensor& x) const;
  double flops_per_token() const;  // 2 per multiply-add

 private:
  Tensor forward_rows(const Tensor& x) const;

  Activation activation_;
  std::shared_ptr<Linear> gate_;  // none when not gated
  std::shared_ptr<Linear> up_;
  std::shared_ptr<Linear> down_;
};

}  // namespace cortado
