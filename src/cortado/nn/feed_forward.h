// The feed-forward branch of a block: mlp, swiglu, geglu.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <optional>

#include "cortado/nn/gated_silu/op.h"
#include "cortado/nn/linear/op.h"

namespace cortado {

// kGelu: x·Φ(x) by erf; kGeluTanh: the tanh approximation; kRelu2: max(x, 0)²
enum class Activation { kGeluTanh, kGelu, kSilu, kRelu2 };

inline Tensor activate(const Tensor& x, Activation activation) {
  if (activation == Activation::kSilu) return at::silu(x);
  if (activation == Activation::kRelu2) return at::relu(x).square();
  return at::gelu(x, activation == Activation::kGelu ? "none" : "tanh");
}

// gpt-oss's gate: (up' + 1) · gate' σ(α gate'), with gate' at most `limit` and up' within ±limit.
struct GateLimit {
  double limit = 7;
  double alpha = 1.702;

  bool operator==(const GateLimit&) const = default;
};

struct FeedForwardOptions {
  int64_t dim = 0;     // D
  int64_t hidden = 0;  // F
  bool gated = false;
  Activation activation = Activation::kGeluTanh;
  bool bias = false;
  std::optional<GateLimit> limit = {};  // gated only; replaces the activation
};

// The part of a block after its mixer: x [..., D] -> [..., D], token by token.
class TokenMap : public Module {
 public:
  using Module::Module;
  virtual Tensor forward(const Tensor& x) const = 0;
  // Returns stream + forward(x), stream being the residual stream.
  virtual Tensor forward_onto(const Tensor& stream, const Tensor& x) const { return stream + forward(x); }
  virtual double flops_per_token() const = 0;  // a multiply-add counts 2
};

// x [..., D]. Plain: down(act(up x)); gated (swiglu, geglu): down(act(gate x) ⊙ up x).
class FeedForward : public TokenMap {
 public:
  explicit FeedForward(const FeedForwardOptions& options)
      : TokenMap("FeedForward"), activation_(options.activation), limit_(options.limit) {
    if (options.gated) {
      gate_ = register_module("gate", std::make_shared<Linear>(options.dim, options.hidden, options.bias));
    }
    up_ = register_module("up", std::make_shared<Linear>(options.dim, options.hidden, options.bias));
    down_ = register_module("down", make_output_linear(options.hidden, options.dim, options.bias));
  }

  Tensor forward(const Tensor& x) const override {
    if (!up_->packed() || x.numel() <= kRowsAtOnce * x.size(-1)) return forward_rows(x);
    std::vector<Tensor> parts = x.reshape({-1, x.size(-1)}).split(kRowsAtOnce);
    for (Tensor& part : parts) part = forward_rows(part);
    return at::cat(parts).view(x.sizes());
  }

  Tensor forward_onto(const Tensor& stream, const Tensor& x) const override {
    return up_->packed() ? TokenMap::forward_onto(stream, x) : linear_onto(stream, hidden(x), *down_);
  }

  double flops_per_token() const override {
    const double matrix = 2.0 * static_cast<double>(up_->weight.numel());
    return matrix * (gate_ ? 3.0 : 2.0);
  }

 private:
  // With 8- or 4-bit weights a row's result does not depend on the other rows, and the products are fast enough that
  // memory traffic between them dominates. This many rows keep their activations in the second-level cache.
  static constexpr int64_t kRowsAtOnce = 288;

  Tensor forward_rows(const Tensor& x) const { return down_->forward(hidden(x)); }

  // Returns the input of the last map.
  Tensor hidden(const Tensor& x) const {
    if (!gate_) return activate(up_->forward(x), activation_);
    if (activation_ == Activation::kSilu && !limit_) return gated_silu(x, *gate_, *up_);
    const auto both = forward_all(x, {gate_.get(), up_.get()});
    if (limit_) {
      const Tensor gate = both[0].clamp_max(limit_->limit), up = both[1].clamp(-limit_->limit, limit_->limit);
      return (up + 1) * gate * at::sigmoid(gate * limit_->alpha);
    }
    return activate(both[0], activation_) * both[1];
  }

  Activation activation_;
  std::optional<GateLimit> limit_;
  std::shared_ptr<Linear> gate_;  // none when not gated
  std::shared_ptr<Linear> up_;
  std::shared_ptr<Linear> down_;
};

}  // namespace cortado
