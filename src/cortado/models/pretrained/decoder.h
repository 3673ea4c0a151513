// What the files of a pretrained decoder say about it, whatever their format, and our config and weights of it.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cortado/models/config.h"
#include "cortado/nn/rotary.h"

namespace cortado {

// Llama's architecture and its descendants: they differ in biases, windows, norms and caps.
struct PretrainedDecoder {
  std::string name;    // for people
  std::string source;  // for messages
  int64_t vocabulary = 0, dim = 0, heads = 0, kv_heads = 0, head_dim = 0, feed_forward = 0;
  int64_t context = 0;  // trained length
  double norm_eps = 1e-6;
  Rotary rotary = 1e4;
  bool qkv_bias = false, output_bias = false, feed_forward_bias = false;
  bool tied = false;
  std::vector<std::optional<int64_t>> windows;  // a layer: keys that a query sees, itself included; none: all
  bool gemma = false;                           // four norms a layer, GeGLU, embeddings times √D
  std::optional<double> scale;                  // of the scores; none: 1/√head_dim
  std::optional<double> softcap, final_softcap;

  int64_t layers() const { return static_cast<int64_t>(windows.size()); }
  // The one decoder's. Sizes that it cannot have: InputError.
  ModelConfig config() const;
};

// A parameter of ours.
struct PretrainedWeight {
  std::string key;     // "embedding.weight"; within a layer "mixer.q.weight"
  int64_t layer = -1;  // none: -1
  std::vector<int64_t> shape;

  std::string name() const;  // "layers.3.mixer.q.weight"
  bool is_norm() const { return key.find("norm") != std::string::npos; }
};

// Calls `visit` with every parameter, in the order of the model's.
void visit_weights(const PretrainedDecoder& decoder, const std::function<void(const PretrainedWeight&)>& visit);

// A format's name of a parameter: `outside` of the layers, or `prefix` + layer + "." + one of `inside`.
struct WeightNames {
  using Pairs = std::vector<std::pair<std::string, std::string>>;  // our key (without .weight and .bias), theirs
  Pairs outside, inside;
  std::string prefix;

  std::string of(const PretrainedWeight& weight) const;
};

}  // namespace cortado
