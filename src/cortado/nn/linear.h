// Linear maps: y = x Wᵀ + b.
#pragma once

#include "cortado/base/error.h"
#include "cortado/nn/lora.h"
#include "cortado/nn/matrix.h"

namespace cortado {

// x [..., in] -> [..., out]; weight [out, in], bias [out] or none. Initialised N(0, 1/in) (LeCun), bias 0.
class Linear : public MatrixModule {
 public:
  Linear(int64_t in, int64_t out, bool with_bias = false) : MatrixModule("Linear", out, in, Role::kMatrix) {
    if (with_bias) register_parameter(bias, "bias", at::zeros({out}), Role::kGain);
  }

  Tensor forward(const Tensor& x) const {
    if (instead()) return instead()(x);
    const Tensor y = multiply(x, bias);
    return lora_ ? y + lora_->forward(x) : y;
  }

  // Adds a low-rank adapter, the submodule "lora" (nn/lora.h).
  void attach(std::shared_ptr<Lora> lora) {
    fail_input_if(lora_ != nullptr, "[lora] the linear map has an adapter");
    lora->to(weight.device());
    lora_ = register_module("lora", std::move(lora));
  }
  const std::shared_ptr<Lora>& lora() const { return lora_; }
  // Whether the map is only its weight and bias, so that a caller that has these need not call forward.
  bool plain() const { return !lora_ && !instead(); }

  OptionalTensor bias;
  // The output is added to the residual stream: "scale_residual" initialises the weight smaller.
  bool residual_output = false;

 private:
  std::shared_ptr<Lora> lora_;
};

// A Linear whose output joins the residual stream (a mixer's or feed-forward's last projection).
inline std::shared_ptr<Linear> make_output_linear(int64_t in, int64_t out, bool with_bias = false) {
  auto linear = std::make_shared<Linear>(in, out, with_bias);
  linear->residual_output = true;
  return linear;
}

}  // namespace cortado
