// A model as data: sizes, norms, feed-forward, positions, and a list of layers that each name their mixer.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cortado/base/json.h"
#include "cortado/nn/experts.h"
#include "cortado/nn/rotary/rotary.h"

namespace cortado {

enum class NormKind { kLayer, kRms };
enum class FeedForwardKind { kNone, kMlp, kSwiglu, kGeglu, kExperts };
enum class HeadKind { kLanguage, kClasses, kPairs };
enum class Pooling { kMean, kClass };
enum class PositionKind { kNone, kSinusoidal, kLearned, kRotary };

// The value of "model_type" in a run's config.json, for programs that read other models too. Any config may have this
// key and those that transformers adds ("architectures", "transformers").
inline constexpr const char* kModelType = "cortado";

// The JSON form. Every key but dim and layers has a default; unknown keys are errors:
// {
//   "name": "macchiato-demo",
//   "vocabulary": 256,                      absent: the tokenizer decides when training starts
//   "dim": 128, "heads": 4,
//   "layers": 4 with "mixer": {"mixer": "macchiato", ...settings}, or a list:
//       [{"repeat": 3, "mixer": {"mixer": "linear"}}, {"mixer": {"mixer": "softmax"}}],
//       the whole list repeated "repeat_layers" times. An entry may have its own "pre_norm", "post_norm" and
//       "feed_forward"; false: none.
//   "norm": "rms" | "layer", "norm_eps": 1e-6, "norm_bias": true (layer only), "pre_norm": true, "post_norm": false,
//   "normed_residual": false,
//   "feed_forward": {"type": "none" | "mlp" | "swiglu" | "geglu", "dim": 512, "bias": false,
//                    "activation": "gelu_tanh" | "gelu" (mlp and geglu; gelu is the exact one, by erf),
//                    or "relu2" (mlp)},
//       dim: default 4 D for mlp, 8/3 D rounded up to a multiple of 8 for the gated ones; or
//       {"type": "experts", "dim": each one's, "bias": false, "experts": 8, "per_token": 2, "normalized": true,
//        "shared": 0, "shared_gate": true (with "shared"), "gated": true, "activation" (with "gated": false) as for mlp,
//        "scores": "softmax" | "sigmoid", "choice_bias": false, "groups": 1, "groups_per_token": 1, "scale": 1,
//        "router_bias": false, "scale_input": false, "limit": null and "alpha": 1.702 (with "limit"), "latent": 0}
//       (nn/experts.h): SwiGLUs or, if not gated, mlps, of which each token goes through some
//   "positions": "none" | "sinusoidal" | "learned" | "rotary",
//   "rope_theta": 10000, "rope_scaling": {...} (nn/rotary/rotary.h),
//   "context": 256 (rows of learned positions),
//   "embedding": {"tied": true, "scaled": false, "scale": null (a number in place of √D), "norm": false (a norm, of the
//                 blocks' kind, before the first of them)}, "head_bias": false,
//   "input": {"type": "tokens"} or {"type": "numbers", "channels": 1} (no vocabulary then),
//   "head": {"type": "language"}, or {"type": "classes" | "pairs", "classes": 10, "pooling": "mean" | "class",
//            "hidden": 0} (models/classifier.h),
//   "dropout": 0.0, "final_softcap": null, "causal": true,
//   "initialization": {"type": "lecun"} or {"type": "normal", "std": 0.02}, both with "scale_residual": false,
//   "task": {"name": "mqar", ...}   what is learned, other than texts (tasks/registry.h), kept here unread
//   "training": {...}   read by train/ (train/options.h), kept here unread
// }
struct HeadConfig {
  HeadKind kind = HeadKind::kLanguage;
  int64_t classes = 0;
  Pooling pooling = Pooling::kMean;
  int64_t hidden = 0;  // width of a layer between the pooled vector and the classes; 0: none
};

struct FeedForwardConfig {
  FeedForwardKind kind = FeedForwardKind::kSwiglu;
  int64_t dim = 0;  // F
  bool bias = false;
  Activation activation = Activation::kSilu;
  ExpertChoice experts = {};

  bool operator==(const FeedForwardConfig&) const = default;
};

// What one layer has other than its model says.
struct LayerChanges {
  std::optional<bool> pre_norm = {}, post_norm = {};
  std::optional<FeedForwardConfig> feed_forward = {};

  bool operator==(const LayerChanges&) const = default;
};

struct ModelConfig {
  std::string name;
  int64_t vocabulary = 0;  // 0: not decided yet
  int64_t dim = 0;         // D
  int64_t heads = 1;
  std::vector<Json> layers;  // one mixer object per layer, patterns expanded: {"mixer": NAME, ...settings}
  std::map<int64_t, LayerChanges> changes = {};  // by layer, of those that differ from the model
  NormKind norm = NormKind::kRms;
  double norm_eps = 1e-6;
  bool norm_bias = true;         // LayerNorm only
  bool pre_norm = true;          // a norm before each branch
  bool post_norm = false;        // a norm after each branch, before it is added (Gemma-2; OLMo-2, without pre_norm)
  bool normed_residual = false;  // a branch is added to its norm's output, not to the norm's input (MiniMax-01)
  FeedForwardConfig feed_forward;
  PositionKind positions = PositionKind::kNone;
  double rope_theta = 10000.0;
  RotaryScaling rope_scaling = {};
  int64_t context = 0;  // training length (0: unknown); with learned positions also the limit
  bool tied = true;
  bool scaled_embedding = false;          // multiplies by √D
  std::optional<double> embedding_scale;  // replaces √D
  bool embedding_norm = false;
  bool head_bias = false;
  int64_t channels = 0;  // numbers per position, if the inputs are numbers; 0: tokens
  HeadConfig head;
  double dropout = 0.0;
  std::optional<double> final_softcap;
  bool causal = true;
  Json initialization;
  Json task;      // the object "task", for train/; null: language modelling
  Json training;  // the object "training", for train/

  // Strict: throws InputError that names key, value and what is allowed (D not divisible by H, ...).
  static ModelConfig from_json(const Json& json, const std::string& source_name);
  Json to_json() const;  // from_json(to_json()) is the same model

  // The layer's norms and feed-forward: the model's, but for the layer's changes.
  bool has_pre_norm(int64_t layer) const { return changes_of(layer).pre_norm.value_or(pre_norm); }
  bool has_post_norm(int64_t layer) const { return changes_of(layer).post_norm.value_or(post_norm); }
  FeedForwardConfig feed_forward_of(int64_t layer) const {
    return changes_of(layer).feed_forward.value_or(feed_forward);
  }
  LayerChanges changes_of(int64_t layer) const;

  // 16 hexadecimal digits that differ between configs whose weights or states do not fit each other.
  std::string architecture_hash() const;
};

// Sets the value at a path like "training.batch" or "layers.0.mixer". Numbers in the path select list elements, and
// objects get the members that they lack. Throws InputError for paths through other non-objects.
void set(Json& config, const std::string& path, Json value);

// Applies an assignment "a.b=value" of --set. The value is JSON if it parses as JSON, otherwise a text.
void apply_setting(Json& config, const std::string& assignment);

// The memory that a state saves: bytes of the keys and values of `tokens` tokens in `type` if every layer were softmax
// attention. Layers that name heads, key heads or head sizes keep theirs; the others have every head of the model.
int64_t key_value_bytes(const ModelConfig& config, int64_t tokens, at::ScalarType type);

}  // namespace cortado
