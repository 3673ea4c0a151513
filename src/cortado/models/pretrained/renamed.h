// What the readers of other programs' architectures (architectures/*.cpp) are made of: strict reading of their configs,
// and a list that says of each of our weights which tensor it is.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cortado/base/json.h"
#include "cortado/models/config.h"
#include "cortado/primitives/types.h"

namespace cortado {

using Shape = std::vector<int64_t>;

// A tensor of theirs, and what of it is one of our weights.
struct TheirTensor {
  std::string name;
  Shape shape;
  std::function<Tensor(const Tensor&)> change = {};  // from theirs, in any floating type, to ours; none: the same
};

// One of our weights and the tensor that it is. Several of ours may be parts of one of theirs; folders may have one or
// another for the same.
struct RenamedWeight {
  std::string ours;
  std::vector<TheirTensor> forms;
};

// Weights of a mixer, a block or a model, by names within it.
struct RenamedWeights {
  std::vector<RenamedWeight> list = {};

  void map(const std::string& ours, const std::string& theirs, const Shape& shape,
           std::function<Tensor(const Tensor&)> change = {}) {
    list.push_back({ours, {{theirs, shape, std::move(change)}}});
  }
  // Another form that the last one may have.
  void or_map(const std::string& theirs, const Shape& shape, std::function<Tensor(const Tensor&)> change) {
    list.back().forms.push_back({theirs, shape, std::move(change)});
  }
  // A linear map with or without a bias.
  void linear(const std::string& ours, const std::string& theirs, int64_t out, int64_t in, bool bias = false);
  // A depthwise convolution: theirs have a channel of input in the middle.
  void convolution(const std::string& ours, const std::string& theirs, int64_t channels, int64_t taps, bool bias);
  // A norm without a bias; `zero_centred`: theirs multiply by 1 + w.
  void norm(const std::string& ours, const std::string& theirs, int64_t dim, bool zero_centred = false);
  // SwiGLU's or GeGLU's three maps: gate, up, down here, with "_proj" behind it there.
  void gated(const std::string& ours, const std::string& theirs, int64_t dim, int64_t hidden, bool bias = false);
  // All of a part's.
  void within(const std::string& ours, const std::string& theirs, const RenamedWeights& part);
};

// One layer's mixer: {"mixer": NAME, ...}, and its weights.
struct RenamedMixer : RenamedWeights {
  Json settings;
  explicit RenamedMixer(Json of) : settings(std::move(of)) {}
};

// A model that is no descendant of Llama's.
struct RenamedModel {
  std::string source;  // for messages
  ModelConfig config;
  RenamedWeights weights;
  std::string idle = {};  // tensors whose names begin so are not read
};

// Settings of a config that say something else than what is computed here.
void expect(JsonReader& config, const char* key, const Json& wanted);
void expect_silu(JsonReader& config);
// `width` parted among the heads, of which there are "num_heads".
int64_t head_size(JsonReader& config, int64_t width, int64_t heads);

inline constexpr int64_t kWidest = 1 << 20, kMostHeads = 65536, kDeepest = 10000;

struct ModelSizes {
  int64_t dim, layers, vocabulary;
};
// "hidden_size", "num_hidden_layers", "vocab_size"
ModelSizes read_sizes(JsonReader& config);
// What every config of ours here has: {"vocabulary", "dim", "heads": 1, "norm": "rms", "positions": "none",
// "embedding": {"tied"}}.
Json config_of(const ModelSizes& sizes, bool tied);

// What "model_type" of a config.json says, and how such a config is read.
struct Architecture {
  std::string type;
  std::function<RenamedModel(JsonReader& config)> read;
};
// architectures/
std::vector<Architecture> mamba_architectures();
std::vector<Architecture> flash_linear_attention_architectures();
std::vector<Architecture> rwkv_architectures();
std::vector<Architecture> recurrent_gemma_architectures();
std::vector<Architecture> qwen3_next_architectures();

}  // namespace cortado
