// Parts of a model as functions of tensors alone, their weights and states among them: what Python's modules call, which
// own both.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cortado/models/language_model.h"
#include "cortado/nn/module.h"

namespace cortado {

// What a text describes:
//
//   {"part": "mixer", "settings": {"mixer": "latte", ...}, "dim": 64, "heads": 4, "layer": 0, "layers": 1,
//    "causal": true, "rotary": false, "rope_theta": 10000, "rope_scaling": {}}          x [B,T,D] -> [B,T,D]
//   {"part": "block", "config": {...}, "layer": 0}                                      x [B,T,D] -> [B,T,D]
//   {"part": "embedding", "config": {...}}   tokens [B,T] -> [B,T,D], positions added; its state is the position
//   {"part": "logits", "config": {...}}      x [B,T,D] -> [B,T,V], behind the final norm
//   {"part": "loss", "config": {...}}        x [B,T,D], targets [B,T] -> mean cross-entropy, nats a token
//
// The last three are one module's: they have the same weights. Unknown keys and impossible sizes: InputError.
class Part {
 public:
  static std::unique_ptr<Part> make(const std::string& text);
  virtual ~Part() = default;

  virtual const torch::nn::Module& module() const = 0;
  virtual StateLayout state_layout() const { return {}; }
  virtual std::string state_name() const { return "part"; }
  // `state` as in Mixer::forward; the inputs are as many as said above.
  virtual Tensor forward(const std::vector<Tensor>& inputs, const Batch& batch, SequenceState* state) = 0;
  // InputError unless the inputs have the shapes and kinds of numbers that are said above.
  virtual void check(const std::vector<Tensor>& inputs) const = 0;
  // Whether training draws random numbers.
  virtual bool draws() const { return false; }
  size_t inputs = 1;
};

// A call of a part. Weights as in named_weights(), and the state's tensors as StateLayout::zeros has them, or none.
struct PartCall {
  std::string part;      // the text
  std::string autocast;  // "bfloat16", "float16", or "": off
  bool training = false;
  std::vector<Tensor> weights, inputs, state;
  OptionalTensor cu_seqlens;
  // Linear maps and embeddings, by their names in the part, that are called where they are whoever asks keeps them: `inner`
  // gets the name and what goes in. Their weights may be empty, but for an embedding's that is a tied head as well.
  std::vector<std::string> called = {};
  std::function<Tensor(const std::string& name, const Tensor& x)> inner = {};
};

// The result, and the state after it (StateLayout::trimmed), if one was given: new tensors, none of which is one of the
// call's. Differentiable by autograd.
std::vector<Tensor> run_part(const PartCall& call);

// The state before the first token, for inputs of the type and on the device of `like`: the layout's tensors in its order.
inline constexpr int64_t kMostPartRows = int64_t{1} << 24;
std::vector<Tensor> part_zero_state(const std::string& part, int64_t rows, const Tensor& like);

// How many places each of the state's tensors will have after `tokens` more (StateLayout::places_after), of `now`.
std::vector<int64_t> part_places(const std::string& part, const std::vector<int64_t>& now, int64_t tokens);

}  // namespace cortado
