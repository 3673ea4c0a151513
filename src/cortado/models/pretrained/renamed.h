// Helpers of the readers in architectures/*.cpp: strict reading of other programs' configs, and a list that maps our
// weights to their tensors.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cortado/base/json.h"
#include "cortado/models/config.h"
#include "cortado/primitives/types.h"

namespace cortado {

using Shape = std::vector<int64_t>;

// The product of two of their matrices, [out, rank] and [rank, in].
struct LowRank {
  std::string up, down;
  int64_t out, rank, in;
};

// One of their tensors, and how to get our weight from it.
struct TheirTensor {
  std::string name;
  Shape shape;
  std::function<Tensor(const Tensor&)> change = {};  // maps theirs, in any floating type, to ours; empty: identity
  std::optional<int64_t> index = {};  // of the first dimension: only this part is read, without that dimension
  // A function of each number, after `change`: ours of theirs, and theirs of ours, for writing. Null: identity.
  struct Value {
    Tensor (*ours)(const Tensor&);
    Tensor (*theirs)(const Tensor&);
  };
  const Value* value = nullptr;
  std::optional<LowRank> plus = {};  // is added before `change`; the sum is kept in float32
};

// One of our weights and its source. Several weights may be parts of one tensor. Folders may store a weight in one of
// several forms.
struct RenamedWeight {
  std::string ours;
  std::vector<TheirTensor> forms;
};

struct ExpertSizes {
  int64_t count, dim, hidden;  // E, D, F
};

// Their names of the three maps of a SwiGLU or GeGLU.
struct GatedNames {
  const char *gate = "gate_proj", *up = "up_proj", *down = "down_proj";
};

// Weights of a mixer, a block or a model, by their names within it.
struct RenamedWeights {
  std::vector<RenamedWeight> list = {};

  void map(const std::string& ours, const std::string& theirs, const Shape& shape,
           std::function<Tensor(const Tensor&)> change = {}) {
    list.push_back({ours, {{theirs, shape, std::move(change)}}});
  }
  // Adds a form for a weight: for the last one of this name or, if there is none, for a new one.
  void or_map(const std::string& ours, TheirTensor theirs);
  // Adds, for every weight whose name begins with `prefix`, a form that begins with `other` in its place.
  void or_within(const std::string& prefix, const std::string& other);
  // A linear map with or without a bias.
  void linear(const std::string& ours, const std::string& theirs, int64_t out, int64_t in, bool bias = false);
  // A depthwise convolution; their weight has an additional input-channel dimension of size 1.
  void convolution(const std::string& ours, const std::string& theirs, int64_t channels, int64_t taps, bool bias);
  // The convolutions of q, k and v: with a tensor each, as published, or one, as transformers 5 has it in memory.
  void qkv_convolutions(int64_t keys, int64_t values, int64_t taps);
  // A norm without a bias. `zero_centred`: theirs multiplies by 1 + w.
  void norm(const std::string& ours, const std::string& theirs, int64_t dim, bool zero_centred = false);
  // The three maps of SwiGLU or GeGLU: gate, up, down here.
  void gated(const std::string& ours, const std::string& theirs, int64_t dim, int64_t hidden, bool bias = false,
             const GatedNames& names = {});
  // As gated(), with gate and up in one tensor, the gate's rows first.
  void gated_joint(const std::string& ours, const std::string& gate_up, const std::string& down, int64_t dim,
                   int64_t hidden);
  // The SwiGLUs of a mixture, "feed_forward.experts.N": with tensors of their own, THEIRS.N.gate_proj.weight and so on,
  // or in two tensors for all of them, which is the form that transformers 5 has in memory.
  void experts(const std::string& theirs, const ExpertSizes& sizes, const GatedNames& names = {});
  // The second of these forms, by the names of the two tensors: [E, 2 F, D], the gate's rows first, and [E, D, F].
  void joint_experts(const std::string& gate_up, const std::string& down, const ExpertSizes& sizes);
  // Applies one more change to a weight, if it has been mapped.
  void then(const std::string& ours, const std::function<Tensor(const Tensor&)>& change);
  // Adds a product to their tensor, of a weight that has been mapped.
  void plus(const std::string& ours, const LowRank& product);
  // Adds all weights of a part under these prefixes.
  void within(const std::string& ours, const std::string& theirs, const RenamedWeights& part);
};

// One layer's mixer: its settings {"mixer": NAME, ...}, and its weights.
struct RenamedMixer : RenamedWeights {
  Json settings;
  explicit RenamedMixer(Json of) : settings(std::move(of)) {}
};

// A model that is not a descendant of Llama.
struct RenamedModel {
  std::string source;  // for error messages
  ModelConfig config;
  RenamedWeights weights;
  std::vector<std::string> idle = {};      // tensors that are ignored: copies of others, or what the config says too
  std::vector<std::string> left_out = {};  // prefixes of the tensors of parts that are not read, such as vision
};

// The tensors of a folder or of a GGUF file.
struct TheirTensors {
  struct Kind {
    Shape shape;
    at::ScalarType type;
  };
  std::map<std::string, Kind> kinds;               // by name
  std::function<Tensor(const TheirTensor&)> read;  // before the change
};

// A model, and a function that opens its tensors.
struct RenamedSource {
  RenamedModel model;
  std::function<TheirTensors()> tensors;
};

// Reads a config by its "model_type"; nullopt if no reader knows it. The model has no source and no name yet.
std::optional<RenamedModel> read_architecture(JsonReader& config);

// Throw InputError if a config's setting differs from what is computed here.
void expect(JsonReader& config, const char* key, const Json& wanted);
void expect_silu(JsonReader& config);
// `width` divided by the number of heads ("num_heads"). Throws InputError if it does not divide.
int64_t head_size(JsonReader& config, int64_t width, int64_t heads);
// The first of these keys that the config has, or the last one: for settings with several names.
const char* spelled(JsonReader& config, std::initializer_list<const char*> keys);

// The type of configs without one, whose settings of the mixer are in "ssm_cfg".
inline constexpr const char* kMambaSsm = "mamba_ssm";

inline constexpr int64_t kWidest = 1 << 20, kMostHeads = 65536, kDeepest = 10000;

struct ModelSizes {
  int64_t dim, layers, vocabulary;
};
// Reads "hidden_size", "num_hidden_layers" and "vocab_size".
ModelSizes read_sizes(JsonReader& config);
// The part of the config that all these models share: {"vocabulary", "dim", "heads": 1, "norm": "rms", "positions":
// "none", "embedding": {"tied"}}.
Json config_of(const ModelSizes& sizes, bool tied);

// A value of "model_type" in config.json, and the reader of such configs.
struct Architecture {
  std::string type;
  std::function<RenamedModel(JsonReader& config)> read;
};
// architectures/
std::vector<Architecture> mamba_architectures();
std::vector<Architecture> mamba_ssm_architectures();
std::vector<Architecture> mamba_hybrid_architectures();
std::vector<Architecture> flash_linear_attention_architectures();
std::vector<Architecture> rwkv_architectures();
std::vector<Architecture> recurrent_gemma_architectures();
std::vector<Architecture> qwen3_next_architectures();
std::vector<Architecture> qwen3_moe_architectures();
std::vector<Architecture> lfm2_architectures();
std::vector<Architecture> olmo_architectures();
std::vector<Architecture> falcon_h1_architectures();
std::vector<Architecture> nemotron_h_architectures();
std::vector<Architecture> kimi_linear_architectures();
std::vector<Architecture> minimax_architectures();
std::vector<Architecture> gpt_oss_architectures();
std::vector<Architecture> zamba2_architectures();
std::vector<Architecture> llama4_architectures();

}  // namespace cortado
