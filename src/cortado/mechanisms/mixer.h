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

// The settings of the surrounding model that a mixer needs.
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

// Memory per query head in LoLA's unit, the key-value pair of one head of width d (2d numbers).
struct PairCount {
  double softmax = 0;  // pairs in windows and caches
  double state = 0;    // the linear state's F·d numbers, in pairs (without its normaliser, as in the paper)
  double total() const { return softmax + state; }
};

// Mapped keys and values as a linear state sums them: [T, H, F] and [T, H, V].
struct StoredPairs {
  Tensor keys, values;
};

// Where each past token s is stored when token t reads, and the score that decided it.
struct HeldPairs {
  Tensor places;  // int64 [H, T, T]: an index into Mixer::memories(), -1 for none
  // double [H, T, T]: the score by which s was ranked just before t read; NaN where s was not ranked. May be undefined.
  Tensor scores;
};

// Whether a sequence can be split over several processes without one waiting for another. The states of such a mixer
// compose: it gets what it needs of the other parts from Batch::parts (docs/scale.md).
struct Joining {
  // Composing adds a sixth to a layer's time with a gated scan and a third with a delta rule (measured). Half as much
  // again stands for the memory that it takes.
  static constexpr double kScan = 1.0 / 4, kDelta = 1.0 / 2;

  int64_t least = 0;  // fewest tokens in a part that can be composed; 0: the state is handed on from part to part
  // Time and memory that composing adds, as a share of the layer's time
  double cost = kScan;
};

// Maps x [B, T, D] to [B, T, D].
//
// Parameters are registered with torch::nn::Module. They are initialised from torch's default generator, LeCun-normal
// unless the paper says otherwise.
class Mixer : public Module {
 public:
  using Module::Module;

  // Without a state: mixes the whole sequence from the zero state. With one: continues from it and updates it, for any
  // T >= 1 (prefill is T > 1, decoding is T = 1). Gradients flow through the state. Bidirectional mixers take no state.
  Tensor forward(const Tensor& x, const Batch& batch, SequenceState* state) {
    Tensor y = mix(x, batch, state);
    if (Tensor* position = state ? state->find(StateLayout::kPosition) : nullptr) {
      *position = batch.cu_seqlens ? *position + batch.lengths(x) : *position + x.size(1);
    }
    return y;
  }

  // The definition with the same parameters, quadratic or token by token, written from the mathematics and not from the
  // fast code. x is dense and starts from the zero state.
  virtual Tensor reference(const Tensor& x) = 0;

  // The tensors of its state (see declare()); empty for a mixer without a state.
  StateLayout state_layout() const {
    StateLayout layout;
    declare(layout);
    return layout;
  }

  // The state before the first token, for `rows` sequences. `options` are those of x (device and type). `cache` is the
  // type of growing caches; default: x's.
  SequenceState zero_state(int64_t rows, const at::TensorOptions& options,
                           std::optional<at::ScalarType> cache = {}) const {
    return state_layout().zeros(name(), rows, options, cache);
  }

  // Bytes of one sequence's state after `tokens` tokens, if x has the type `type`.
  int64_t state_bytes(int64_t tokens, at::ScalarType type = at::kFloat,
                      std::optional<at::ScalarType> cache = {}) const {
    return state_layout().bytes(tokens, type, cache);
  }

  // The state's size after `tokens` tokens in key-value pairs; nullopt if the mechanism stores no pairs.
  virtual std::optional<PairCount> pairs(int64_t /*tokens*/) const { return std::nullopt; }

  // For analyses, on a whole sequence x [1, T, D] and by the definition. stored_pairs: the mapped keys and values of
  // its linear state, if it maps keys. memories: names of the memories it divides pairs among ("window", "cache",
  // "state"). held: which pair is in which.
  virtual std::optional<StoredPairs> stored_pairs(const Tensor& /*x*/) const { return std::nullopt; }
  virtual std::vector<std::string> memories() const { return {}; }
  virtual HeldPairs held(const Tensor& /*x*/) const { return {}; }

  // Whether it hands its values to later layers of a pass, or gets the first ones (Batch::first_values).
  virtual bool shares_values() const { return false; }

  // Whether and how parts of a sequence in several processes are composed; see Joining.
  virtual Joining joining() const { return {}; }

  // Floating-point operations (2 per multiply-add) for one token at depth `tokens`, projections included.
  virtual double flops_per_token(int64_t tokens) const = 0;

 protected:
  // Adds the tensors of its state to the layout.
  virtual void declare(StateLayout& /*layout*/) const {}

  // forward() without the update of the state's position, which still is that of x's first token.
  virtual Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) = 0;

  // Operations per token in matrices, convolutions and feature maps: two per weight.
  double weight_flops() const {
    int64_t weights = 0;
    const auto count = [&](const auto& tensors) {
      for (const auto& tensor : tensors) {
        if (tensor.key().ends_with(".weight") && tensor.value().dim() > 1) weights += tensor.value().numel();
      }
    };
    count(named_parameters());
    count(named_buffers());  // random features, which are not parameters
    return 2.0 * static_cast<double>(weights);
  }
  // Operations per token in its scans: `each` per number of their states.
  double scan_flops(double each) const { return each * static_cast<double>(state_layout().scan_numbers()); }
};

}  // namespace cortado
