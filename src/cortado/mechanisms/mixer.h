// The interface of every mechanism: a module that mixes a sequence over time.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cortado/base/json.h"
#include "cortado/nn/batch.h"
#include "cortado/nn/module.h"
#include "cortado/nn/rotary/rotary.h"
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

// Which of a mixer's memories holds token s when token t is read, and by what that was decided.
struct HeldPairs {
  Tensor places;  // int64 [H, T, T]: a number of Mixer::memories(), -1 for none
  Tensor scores;  // double [H, T, T]: s was ranked by it just before t was read, NaN where it was not; or undefined
};

// Of a sequence in several processes, the parts of a mixer whose states compose: each takes what it needs of the others
// from Batch::parts, and none waits for another's.
struct Joining {
  // Of a layer's part, what composing adds to its time, a sixth and a third as measured, and a half of that for the
  // memory that it takes (docs/scale.md).
  static constexpr double kScan = 1.0 / 4, kDelta = 1.0 / 2;

  int64_t least = 0;  // tokens of a part from which on it can; 0: it waits for the state that the part before leaves
  double cost = kScan;
};

// x [B, T, D] -> [B, T, D].
//
// Parameters are registered with torch::nn::Module; initialisation (LeCun-normal unless the paper says otherwise) draws
// from torch's default generator.
class Mixer : public Module {
 public:
  using Module::Module;

  // Without a state: the whole sequence, from zero. With one: goes on from it and leaves it updated, for any T >= 1
  // (prefill is T > 1, decoding is T = 1). Gradients flow through the state. Bidirectional mixers take no state.
  Tensor forward(const Tensor& x, const Batch& batch, SequenceState* state) {
    Tensor y = mix(x, batch, state);
    if (Tensor* position = state ? state->find(StateLayout::kPosition) : nullptr) {
      *position = batch.cu_seqlens ? *position + batch.lengths(x) : *position + x.size(1);
    }
    return y;
  }

  // The definition, quadratic or token by token, from the mathematics and not from the fast code: dense x from zero,
  // same parameters.
  virtual Tensor reference(const Tensor& x) = 0;

  // What a state of it holds: what declare() says; nothing where there is none.
  StateLayout state_layout() const {
    StateLayout layout;
    declare(layout);
    return layout;
  }

  // The state before the first token, for `rows` sequences. `options` gives device and the type of x, `cache` that of
  // growing caches, if it is another.
  SequenceState zero_state(int64_t rows, const at::TensorOptions& options,
                           std::optional<at::ScalarType> cache = {}) const {
    return state_layout().zeros(name(), rows, options, cache);
  }

  // Bytes of one row's state after `tokens` tokens of this type.
  int64_t state_bytes(int64_t tokens, at::ScalarType type = at::kFloat,
                      std::optional<at::ScalarType> cache = {}) const {
    return state_layout().bytes(tokens, type, cache);
  }

  // What the state holds after `tokens` tokens in key-value pairs; none where the mechanism holds no such pairs.
  virtual std::optional<PairCount> pairs(int64_t /*tokens*/) const { return std::nullopt; }

  // What analyses ask of the whole sequence x [1, T, D], by the definition. The pairs of its linear state, where it maps
  // keys of its own for it; the memories it has in place of one ("window", "cache", "state"), and what is where in them.
  virtual std::optional<StoredPairs> stored_pairs(const Tensor& /*x*/) const { return std::nullopt; }
  virtual std::vector<std::string> memories() const { return {}; }
  virtual HeldPairs held(const Tensor& /*x*/) const { return {}; }

  // A sequence in several processes: whether it can take from Batch::parts what it needs of the others.
  virtual Joining joining() const { return {}; }

  // Floating-point operations (2 per multiply-add) for one token at depth `tokens`, projections included.
  virtual double flops_per_token(int64_t tokens) const = 0;

 protected:
  // Adds the tensors of its state.
  virtual void declare(StateLayout& /*layout*/) const {}

  // forward, but for the position in the state, which is still that of the first token of x.
  virtual Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) = 0;

  // Two for every number of its matrices, convolutions and feature maps: what a token is multiplied by.
  double weight_flops() const {
    int64_t weights = 0;
    const auto count = [&](const auto& tensors) {
      for (const auto& tensor : tensors) {
        if (tensor.key().ends_with(".weight") && tensor.value().dim() > 1) weights += tensor.value().numel();
      }
    };
    count(named_parameters());
    count(named_buffers());  // features that are drawn, not learned
    return 2.0 * static_cast<double>(weights);
  }
  // `each` for every number of its scans.
  double scan_flops(double each) const { return each * static_cast<double>(state_layout().scan_numbers()); }
};

}  // namespace cortado
