// Models that are an embedding, layers of a mixer and a feed-forward with a norm before each, a norm and a head: for
// readers of families that differ in their layers.
#pragma once

#include <string>
#include <vector>

#include "cortado/models/pretrained/renamed.h"

namespace cortado {

// A layer's feed-forward: its settings {"type": ...}, and its weights, "feed_forward. ...".
struct RenamedFeedForward : RenamedWeights {
  Json settings;
};

// A SwiGLU whose tensors lie in `theirs`.
RenamedFeedForward swiglu(const std::string& theirs, int64_t dim, int64_t hidden, bool bias = false,
                          const GatedNames& names = {});

// Values that a config may omit.
struct LayeredDefaults {
  double norm_eps = 1e-6;
  int64_t context = 0;
  bool tied = false;
};

struct LayeredModel {
  ModelSizes sizes;
  Json json;  // of config_of(), with everything that is no layer
  // Their names of the norms.
  std::string mixer_norm = "input_layernorm", feed_forward_norm = "post_attention_layernorm", last_norm = "norm";
  bool zero_centred_norms = false;  // theirs multiply by 1 + w
  RenamedWeights layers = {};

  double norm_eps() const { return json["norm_eps"]; }
  // Adds a layer whose mixer's tensors lie in `their_mixer`.
  void add(const RenamedMixer& mixer, const std::string& their_mixer, const RenamedFeedForward& feed_forward);
  RenamedModel model(JsonReader& config) &&;
};

// Reads the sizes, "rms_norm_eps", "tie_word_embeddings" and "max_position_embeddings"; the activation must be silu.
LayeredModel read_layered(JsonReader& config, const LayeredDefaults& usual);

// Values that a config may omit of a mixture whose experts are chosen as in DeepSeek-V3.
struct GroupedExperts {
  int64_t groups = 1, groups_per_token = 1, per_token = 8;
  double scale = 1;
};
// The settings of such a mixture: sigmoids, a bias of the choice, and "n_group", "topk_group", "num_experts_per_tok",
// "norm_topk_prob", "routed_scaling_factor" or Kimi Linear's names of them.
Json read_grouped_experts(JsonReader& config, const ExpertSizes& sizes, const GroupedExperts& usual);

// Whether each layer is of the first kind, by the list `key`, where a kind may have several names. nullopt: the config
// does not say.
std::optional<std::vector<bool>> read_layer_types(JsonReader& config, int64_t layers,
                                                  const std::vector<std::string>& kind,
                                                  const std::vector<std::string>& other,
                                                  const char* key = "layer_types");
// Whether each layer's number is in the list `key`; null: none is.
std::vector<bool> read_layer_numbers(JsonReader& config, const char* key, int64_t layers);
// Whether each layer has experts in Qwen's models: not those of "mlp_only_layers"; of the others, every
// "decoder_sparse_step"-th.
std::vector<bool> read_expert_layers(JsonReader& config, int64_t layers);

}  // namespace cortado
