// The interface of every mechanism: a module that mixes a sequence over time.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <optional>
#include <string>

#include "cortado/base/json.h"
#include "cortado/nn/batch.h"
#include "cortado/nn/rotary.h"
#include "cortado/nn/state.h"

namespace cortado {

// What the model around a mixer decides for it.
struct MixerContext {
  int64_t dim = 0;     // D: width of x
  int64_t heads = 1;   // the model's default head count
  int64_t layer = 0;   // this layer's number, from 0
  int64_t layers = 1;  // layers in the model
  bool causal = true;
  bool rotary = false;  // rotary positions, where the mixer has positions
  double rope_theta = 10000.0;
  RotaryScaling rope_scaling = {};
};

// Memory in LoLA's unit: key-value pairs of one head of size d, 2d numbers, that a layer holds for a query head.
struct PairCount {
  double softmax = 0;  // in windows and caches, after any number of tokens
  double state = 0;    // the linear state's F·d numbers (its normaliser is not counted, as in the paper)
  double total() const { return softmax + state; }
};

// x [B, T, D] -> [B, T, D].
//
// Parameters are registered with torch::nn::Module; initialisation (LeCun-normal unless the paper says otherwise) draws
// from torch's default generator.
class Mixer : public torch::nn::Module {
 public:
  using torch::nn::Module::Module;

  // Without a state: the whole sequence, from zero. With one: goes on from it and leaves it updated, for any T >= 1
  // (prefill is T > 1, decoding is T = 1). Gradients flow through the state. Bidirectional mixers take no state.
  virtual Tensor forward(const Tensor& x, const Batch& batch, SequenceState* state) = 0;

  // The definition, quadratic or token by token, from the mathematics and not from the fast code: dense x from zero,
  // same parameters.
  virtual Tensor reference(const Tensor& x) = 0;

  // The state before the first token, for `rows` sequences. `options` gives device and the type of x: scan states are
  // float32 (float64 for float64), caches of keys and values have x's type.
  virtual SequenceState zero_state(int64_t rows, const at::TensorOptions& options) const = 0;

  // Bytes of one row's state after `tokens` tokens, with float32 x: the formula, which a test holds against
  // zero_state/forward.
  virtual int64_t state_bytes(int64_t tokens) const = 0;

  // What the state holds after `tokens` tokens in key-value pairs; none where the mechanism holds no such pairs.
  virtual std::optional<PairCount> pairs(int64_t tokens) const {
    static_cast<void>(tokens);
    return std::nullopt;
  }

  // Floating-point operations (2 per multiply-add) for one token at depth `tokens`, projections included.
  virtual double flops_per_token(int64_t tokens) const = 0;
};

}  // namespace cortado
