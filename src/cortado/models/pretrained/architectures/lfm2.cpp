// LFM2 of transformers: gated short convolutions, and softmax attention with normed queries and keys in some layers.
#include "cortado/models/pretrained/renamed.h"
#include "cortado/models/pretrained/rope.h"

namespace cortado {
namespace {

RenamedMixer read_convolution(JsonReader& config, int64_t dim) {
  const int64_t taps = config.integer("conv_L_cache", 1, 64, 3);
  const bool bias = config.boolean("conv_bias", false);
  RenamedMixer mixer({{"mixer", "gated_short_conv"}, {"taps", taps}, {"bias", bias}});
  mixer.linear("in", "in_proj", 3 * dim, dim, bias);
  mixer.convolution("conv", "conv", dim, taps, bias);
  mixer.linear("out", "out_proj", dim, dim, bias);
  return mixer;
}

RenamedMixer read_lfm2_attention(JsonReader& config, int64_t dim, double norm_eps) {
  const int64_t heads = config.integer("num_attention_heads", 1, kMostHeads, 32);
  const int64_t key_heads = config.integer("num_key_value_heads", 1, kMostHeads, 8);
  const int64_t head = config.has("head_dim") ? config.integer("head_dim", 1, 65536) : head_size(config, dim, heads);
  RenamedMixer mixer({{"mixer", "softmax"},
                      {"heads", heads},
                      {"kv_heads", key_heads},
                      {"head_dim", head},
                      {"qk_norm", true},
                      {"norm_eps", norm_eps}});
  mixer.linear("q", "q_proj", heads * head, dim);
  for (const char* name : {"k", "v"}) mixer.linear(name, concat(name, "_proj"), key_heads * head, dim);
  mixer.linear("o", "out_proj", dim, heads * head);
  for (const char* name : {"q", "k"}) mixer.norm(concat(name, "_norm"), concat(name, "_layernorm"), head);
  return mixer;
}

// The width that the layers have. A config may give that of a feed-forward with two maps, which is adjusted.
int64_t read_hidden(JsonReader& config) {
  // The published files call it block_ff_dim, which counts if both are there.
  const int64_t given = config.integer("intermediate_size", 1, kWidest, 12288);
  const int64_t hidden = config.integer("block_ff_dim", 1, kWidest, given);
  if (!config.boolean("block_auto_adjust_ff_dim", true)) return hidden;
  const auto reduced = static_cast<int64_t>(2.0 * static_cast<double>(hidden) / 3);
  if (config.says("block_ffn_dim_multiplier") && !config.has("block_ffn_dim_multiplier")) return reduced;
  const double multiplier = config.number("block_ffn_dim_multiplier", 1e-3, 1e3, 1.0);
  const int64_t step = config.integer("block_multiple_of", 1, kWidest, 256);
  const auto wanted = static_cast<int64_t>(multiplier * static_cast<double>(reduced));
  return (wanted + step - 1) / step * step;
}

// Whether each layer is softmax attention: by "layer_types", otherwise those of "full_attn_idxs", otherwise all.
std::vector<bool> read_attention_layers(JsonReader& config, int64_t layers) {
  const Json types = config.any("layer_types"), indices = config.any("full_attn_idxs");
  std::vector<bool> attends(layers, types.is_null() && indices.is_null());
  for (size_t i = 0; !types.is_null() && i < attends.size(); ++i) {
    const Json type = types.is_array() && types.size() == attends.size() ? types[i] : Json();
    attends[i] = type == "full_attention";
    config.fail_if(!attends[i] && type != "conv", "\"layer_types\" must name each layer's, conv or full_attention");
  }
  const Json chosen = types.is_null() ? indices : Json();
  for (const auto& [_, index] : chosen.items()) {
    const bool there = indices.is_array() && index.is_number_integer() && index >= 0 && index < layers;
    config.fail_if(!there, "\"full_attn_idxs\" must list layers, 0 to ", layers - 1, ", got ", indices.dump());
    attends[index.get<size_t>()] = true;
  }
  return attends;
}

RenamedModel read_lfm2(JsonReader& config) {
  const ModelSizes sizes = read_sizes(config);
  const int64_t dim = sizes.dim, hidden = read_hidden(config);
  const bool tied = config.boolean("tie_embedding", config.boolean("tie_word_embeddings", true));
  const double norm_eps = config.number("norm_eps", 0.0, 1.0, 1e-5);
  const PretrainedRope rope = read_rope(config, 1.0, 1e6);
  config.fail_if(rope.fraction != 1.0,
                 "\"partial_rotary_factor\": rotary positions on a part of each head are not "
                 "supported");
  Json json = config_of(sizes, tied);
  json["norm_eps"] = norm_eps;
  write_rope(rope, json);
  json["context"] = config.integer("max_position_embeddings", 0, int64_t{1} << 40, 128000);
  json["feed_forward"] = {{"type", "swiglu"}, {"dim", hidden}};
  const RenamedMixer convolution = read_convolution(config, dim),
                     attention = read_lfm2_attention(config, dim, norm_eps);
  const std::vector<bool> attends = read_attention_layers(config, sizes.layers);
  RenamedWeights weights;
  weights.map("embedding.weight", "model.embed_tokens.weight", {sizes.vocabulary, dim});
  for (int64_t i = 0; i < sizes.layers; ++i) {
    const RenamedMixer& mixer = attends[i] ? attention : convolution;
    json["layers"].push_back({{"mixer", mixer.settings}});
    RenamedWeights block;
    block.norm("mixer_norm", "operator_norm", dim);
    block.within("mixer", attends[i] ? "self_attn" : "conv", mixer);
    block.norm("feed_forward_norm", "ffn_norm", dim);
    block.linear("feed_forward.gate", "feed_forward.w1", hidden, dim);
    block.linear("feed_forward.up", "feed_forward.w3", hidden, dim);
    block.linear("feed_forward.down", "feed_forward.w2", dim, hidden);
    weights.within(concat("layers.", i), concat("model.layers.", i), block);
  }
  weights.norm("norm", "model.embedding_norm", dim);  // the last norm, in spite of its name
  if (!tied) weights.map("head.weight", "lm_head.weight", {sizes.vocabulary, dim});
  return {{}, ModelConfig::from_json(json, config.place()), weights};
}

}  // namespace

std::vector<Architecture> lfm2_architectures() { return {{"lfm2", read_lfm2}}; }

}  // namespace cortado
