// The interface of every mechanism: a module that mixes a sequence over time.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cortado/base/json.h"
#include "cortado/nn/batch.h"
#include "cortado/nn/rotary.h"
#include "cortado/nn/state_layout.h"

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

// Keys as a linear state stores them, and values: [T, H, F], [T, H, V].
struct StoredPairs {
  Tensor keys, values;
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
  Tensor forward(const Tensor& x, const Batch& batch, SequenceState* state);

  // The definition, quadratic or token by token, from the mathematics and not from the fast code: dense x from zero,
  // same parameters.
  virtual Tensor reference(const Tensor& x) = 0;

  // What a state of it holds; nothing where there is none.
  virtual StateLayout state_layout() const { return {}; }

  // The state before the first token, for `rows` sequences. `options` gives device and the type of x, `cache` that of
  // growing caches, if it is another.
  SequenceState zero_state(int64_t rows, const at::TensorOptions& options,
                           std::optional<at::ScalarType> cache = {}) const {
    return state_layout().zeros(name(), rows, options, cache);
  }

  // Bytes of one row's state after `tokens` tokens of this type.
  int64_t state_bytes(int64_t tokens, at::ScalarType type = at::kFloat) const {
    return state_layout().bytes(tokens, type);
  }

  // What the state holds after `tokens` tokens in key-value pairs; none where the mechanism holds no such pairs.
  virtual std::optional<PairCount> pairs(int64_t tokens) const {
    static_cast<void>(tokens);
    return std::nullopt;
  }

  // What analyses ask of the whole sequence x [1, T, D], by the definition. The pairs of its linear state, where it maps
  // keys of its own for it; the memories it has in place of one ("window", "cache", "state"), and the number of that
  // which holds token s when token t is read, [H, T, T], -1 for none.
  virtual std::optional<StoredPairs> stored_pairs(const Tensor& x) const {
    static_cast<void>(x);
    return std::nullopt;
  }
  virtual std::vector<std::string> memories() const { return {}; }
  virtual Tensor held(const Tensor& x) const {
    static_cast<void>(x);
    return {};
  }

  // Floating-point operations (2 per multiply-add) for one token at depth `tokens`, projections included.
  virtual double flops_per_token(int64_t tokens) const = 0;

 protected:
  // forward, but for the position in the state, which is still that of the first token of x.
  virtual Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) = 0;

  // Two for every number of its matrices, convolutions and feature maps: what a token is multiplied by.
  double weight_flops() const;
  // `each` for every number of its scans.
  double scan_flops(double each) const { return each * static_cast<double>(state_layout().scan_numbers()); }
};

}  // namespace cortado
