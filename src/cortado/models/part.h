// Parts of a model as pure functions of tensors, including weights and states. Python's modules, which own both, call
// them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cortado/models/language_model.h"
#include "cortado/nn/module.h"

namespace cortado {

// A JSON text describes a part:
//
//   {"part": "mixer", "settings": {"mixer": "latte", ...}, "dim": 64, "heads": 4, "layer": 0, "layers": 1,
//    "causal": true, "rotary": false, "rope_theta": 10000, "rope_scaling": {}}          x [B,T,D] -> [B,T,D]
//   {"part": "block", "config": {...}, "layer": 0}     x [B,T,D] -> [B,T,D], or behind these channels D more, the values
//                                                      that layers share (Batch::first_values): in x, and in the result
//   {"part": "embedding", "config": {...}}   tokens [B,T] -> [B,T,D], positions added; its state is the position
//   {"part": "norm", "config": {...}}        x [B,T,D] -> [B,T,D], the final norm
//   {"part": "logits", "config": {...}}      x [B,T,D] -> [B,T,V], after the final norm
//   {"part": "loss", "config": {...}}        x [B,T,D], targets [B,T] -> mean cross-entropy, nats per token
//
// "embedding", "norm", "logits" and "loss" are parts of one module and have equal weights. Throws InputError for
// unknown keys and impossible sizes.
class Part {
 public:
  static std::unique_ptr<Part> make(const std::string& text);
  virtual ~Part() = default;

  virtual const torch::nn::Module& module() const = 0;
  virtual StateLayout state_layout() const { return {}; }
  virtual std::string state_name() const { return "part"; }
  // `state` as in Mixer::forward; `inputs` are those that the description above lists.
  virtual Tensor forward(const std::vector<Tensor>& inputs, const Batch& batch, SequenceState* state) = 0;
  // Throws InputError if the inputs do not have the shapes and types described above.
  virtual void check(const std::vector<Tensor>& inputs) const = 0;
  // Channels of the result, if x has `width`.
  virtual int64_t width_after(int64_t width) const { return width; }
  // Whether it draws random numbers in training.
  virtual bool draws() const { return false; }
  size_t inputs = 1;
};

// A call of a part. Weights are in the order of named_weights(), the state's tensors in that of StateLayout::zeros; the
// state may be empty.
struct PartCall {
  std::string part;      // its description
  std::string autocast;  // "bfloat16", "float16", or "": off
  bool training = false;
  std::vector<Tensor> weights, inputs, state;
  OptionalTensor cu_seqlens;
  // Names of linear maps and embeddings whose module is called elsewhere: `inner` gets the name and the input. Their
  // weights may be empty, except for an embedding that is also a tied head.
  std::vector<std::string> called = {};
  std::function<Tensor(const std::string& name, const Tensor& x)> inner = {};
};

// Returns the result, followed by the new state if one was given (StateLayout::trimmed). All are new tensors that share
// no memory with the call's. Differentiable by autograd.
std::vector<Tensor> run_part(const PartCall& call);

// The state before the first token, for inputs with the type and device of `like`: the layout's tensors in order.
inline constexpr int64_t kMostPartRows = int64_t{1} << 24;
std::vector<Tensor> part_zero_state(const std::string& part, int64_t rows, const Tensor& like);

// For each of the state's tensors: its number of entries after `tokens` more tokens, given `now`
// (StateLayout::places_after).
std::vector<int64_t> part_places(const std::string& part, const std::vector<int64_t>& now, int64_t tokens);

// Part::width_after of a part.
int64_t part_width(const std::string& part, int64_t width);

}  // namespace cortado
