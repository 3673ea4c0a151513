// LFM2 of transformers: gated short convolutions, and softmax attention with normed queries and keys in some layers.
#include "cortado/models/pretrained/architectures/layered.h"
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
  if (const auto types = read_layer_types(config, layers, {"full_attention"}, {"conv"})) return *types;
  if (!config.has("full_attn_idxs")) return std::vector<bool>(layers, true);
  return read_layer_numbers(config, "full_attn_idxs", layers);
}

RenamedModel read_lfm2(JsonReader& config) {
  LayeredModel read = read_layered(config, {.context = 128000});
  const int64_t dim = read.sizes.dim;
  read.json["embedding"]["tied"] = config.boolean("tie_embedding", config.boolean("tie_word_embeddings", true));
  read.json["norm_eps"] = config.number("norm_eps", 0.0, 1.0, 1e-5);
  write_rope(read_whole_rope(config, 1e6), read.json);
  read.mixer_norm = "operator_norm";
  read.feed_forward_norm = "ffn_norm";
  read.last_norm = "embedding_norm";  // in spite of its name
  const RenamedMixer convolution = read_convolution(config, dim),
                     attention = read_lfm2_attention(config, dim, read.norm_eps());
  const RenamedFeedForward feed_forward =
      swiglu("feed_forward", dim, read_hidden(config), /*bias=*/false, {"w1", "w3", "w2"});
  for (const bool attends : read_attention_layers(config, read.sizes.layers)) {
    read.add(attends ? attention : convolution, attends ? "self_attn" : "conv", feed_forward);
  }
  return std::move(read).model(config);
}

}  // namespace

std::vector<Architecture> lfm2_architectures() { return {{"lfm2", read_lfm2}}; }

}  // namespace cortado
