// OLMo-2, OLMo-3 and OLMo Hybrid of transformers. The norms of their softmax layers follow the branches, and those of
// queries and keys are over all heads together. OLMo-3 has windows in most layers, OLMo Hybrid Gated DeltaNet, whose
// layers have their norms before the branches.
#include "cortado/models/pretrained/architectures/attention.h"
#include "cortado/models/pretrained/rope.h"

namespace cortado {
namespace {

RenamedMixer read_olmo_attention(JsonReader& config, int64_t dim, double norm_eps) {
  RenamedMixer mixer = read_attention(config, dim, {});
  const int64_t head = mixer.settings["head_dim"];
  mixer.settings.update({{"qk_norm", true}, {"qk_norm_type", "per_layer"}, {"norm_eps", norm_eps}});
  mixer.norm("q_norm", "q_norm", mixer.settings["heads"].get<int64_t>() * head);
  mixer.norm("k_norm", "k_norm", mixer.settings["kv_heads"].get<int64_t>() * head);
  return mixer;
}

// What the readers below have in common.
struct Olmo {
  ModelSizes sizes;
  double norm_eps;
  int64_t hidden;
  Json json;
  RenamedWeights weights = {};

  // Adds a layer. `after`: its norms follow the branches.
  void add(const RenamedMixer& mixer, const char* their_mixer, bool after) {
    const auto layer = json["layers"].size();
    const int64_t dim = sizes.dim;
    json["layers"].push_back({{"mixer", mixer.settings}});
    if (after) json["layers"].back().update({{"pre_norm", false}, {"post_norm", true}});
    RenamedWeights block;
    // As published, and as transformers 5 writes OLMo Hybrid or has it in memory.
    if (after) {
      block.norm("mixer_post_norm", "post_attention_layernorm", dim);
      block.or_map("mixer_post_norm.weight", {"feedforward_layer_norm.weight", {dim}});
      block.norm("feed_forward_post_norm", "post_feedforward_layernorm", dim);
    } else {
      block.norm("mixer_norm", "attention_layer_norm", dim);
      block.or_map("mixer_norm.weight", {"input_layernorm.weight", {dim}});
      block.norm("feed_forward_norm", "feedforward_layer_norm", dim);
      block.or_map("feed_forward_norm.weight", {"post_attention_layernorm.weight", {dim}});
    }
    block.within("mixer", their_mixer, mixer);
    block.gated("feed_forward", "mlp", dim, hidden);
    weights.within(concat("layers.", layer), concat("model.layers.", layer), block);
  }

  RenamedModel model(JsonReader& config) && {
    const ModelConfig read = ModelConfig::from_json(json, config.place());
    weights.map("embedding.weight", "model.embed_tokens.weight", {sizes.vocabulary, sizes.dim});
    weights.norm("norm", "model.norm", sizes.dim);
    if (!read.tied) weights.map("head.weight", "lm_head.weight", {sizes.vocabulary, sizes.dim});
    return {{}, read, std::move(weights)};
  }
};

Olmo read_olmo(JsonReader& config, double usual_eps) {
  const ModelSizes sizes = read_sizes(config);
  expect_silu(config);
  Olmo olmo = {sizes, config.number("rms_norm_eps", 0.0, 1.0, usual_eps),
               config.integer("intermediate_size", 1, kWidest, 11008),
               config_of(sizes, config.boolean("tie_word_embeddings", false))};
  olmo.json["norm_eps"] = olmo.norm_eps;
  olmo.json["feed_forward"] = {{"type", "swiglu"}, {"dim", olmo.hidden}};
  olmo.json["context"] = config.integer("max_position_embeddings", 0, int64_t{1} << 40, 2048);
  return olmo;
}

// The type of a layer, by "layer_types" or else `usual`; it must be one of the two.
std::string type_of_layer(JsonReader& config, const Olmo& olmo, int64_t layer, const std::string& other,
                          const std::string& usual) {
  const Json types = config.any("layer_types");
  if (types.is_null()) return usual;
  const bool there = types.is_array() && static_cast<int64_t>(types.size()) == olmo.sizes.layers;
  const Json type = there ? types[static_cast<size_t>(layer)] : Json();
  config.fail_if(type != other && type != "full_attention", "\"layer_types\" must name each layer's, ", other,
                 " or full_attention");
  return type.get<std::string>();
}

RenamedModel read_olmo2(JsonReader& config) {
  Olmo olmo = read_olmo(config, 1e-5);
  write_rope(read_whole_rope(config), olmo.json);
  const RenamedMixer attention = read_olmo_attention(config, olmo.sizes.dim, olmo.norm_eps);
  for (int64_t i = 0; i < olmo.sizes.layers; ++i) olmo.add(attention, "self_attn", /*after=*/true);
  return std::move(olmo).model(config);
}

// Only full attention has positions that are stretched to a longer context. The model's are those of the windows.
RenamedModel read_olmo3(JsonReader& config) {
  Olmo olmo = read_olmo(config, 1e-5);
  const RopesByType ropes = read_ropes_by_type(config, {5e5, 5e5});
  write_rope(ropes.sliding, olmo.json);
  RenamedMixer full = read_olmo_attention(config, olmo.sizes.dim, olmo.norm_eps);
  RenamedMixer sliding = full;
  sliding.settings["mixer"] = "sliding_window";
  sliding.settings["window"] = config.integer("sliding_window", 1, 1 << 30, 4096);
  if (ropes.full.theta != ropes.sliding.theta) full.settings["rope_theta"] = ropes.full.theta;
  if (ropes.full.scaling != ropes.sliding.scaling) full.settings["rope_scaling"] = ropes.full.scaling.to_json();
  for (int64_t i = 0; i < olmo.sizes.layers; ++i) {
    const std::string usual = (i + 1) % 4 == 0 ? "full_attention" : "sliding_attention";
    const bool slides = type_of_layer(config, olmo, i, "sliding_attention", usual) == "sliding_attention";
    olmo.add(slides ? sliding : full, "self_attn", /*after=*/true);
  }
  return std::move(olmo).model(config);
}

RenamedMixer read_olmo_delta_net(JsonReader& config, int64_t dim) {
  const int64_t usual = config.integer("num_attention_heads", 1, kMostHeads, 30);
  const int64_t key_heads = config.integer("linear_num_key_heads", 1, kMostHeads, usual);
  const int64_t heads = config.integer("linear_num_value_heads", 1, kMostHeads, usual);
  config.fail_if(heads % key_heads != 0, "linear_num_value_heads (", heads,
                 ") is not divisible by linear_num_key_heads (", key_heads, ")");
  const int64_t head = config.integer("linear_key_head_dim", 1, 65536, std::max<int64_t>(1, 3 * dim / (4 * key_heads)));
  const int64_t value = config.integer("linear_value_head_dim", 1, 65536, 2 * head);
  const int64_t taps = config.integer("linear_conv_kernel_dim", 1, 64, 4);
  RenamedMixer mixer({{"mixer", "gated_delta_net"},
                      {"heads", heads},
                      {"key_heads", key_heads},
                      {"head_dim", head},
                      {"value_head_dim", value},
                      {"taps", taps},
                      {"reflect", config.boolean("linear_allow_neg_eigval", true)},
                      {"output_gate", "silu"},
                      {"norm_eps", 1e-5}});  // whatever the config's other norms have
  for (const char* name : {"q", "k"}) mixer.linear(name, concat(name, "_proj"), key_heads * head, dim);
  for (const auto& [ours, theirs] : {std::pair("v", "v_proj"), std::pair("gate", "g_proj")}) {
    mixer.linear(ours, theirs, heads * value, dim);
  }
  for (const auto& [ours, theirs] : {std::pair("beta", "b_proj"), std::pair("decay", "a_proj")}) {
    mixer.linear(ours, theirs, heads, dim);
  }
  mixer.qkv_convolutions(key_heads * head, heads * value, taps);
  mixer.map("a_log", "A_log", {heads});
  mixer.map("dt_bias", "dt_bias", {heads});
  mixer.norm("norm", "o_norm", value);
  mixer.linear("o", "o_proj", dim, heads * value);
  return mixer;
}

RenamedModel read_olmo_hybrid(JsonReader& config) {
  Olmo olmo = read_olmo(config, 1e-6);
  // The published models have no positions: their base is null.
  const Json rope = config.any("rope_parameters");
  const bool bare = rope.is_object() && rope.contains("rope_theta") && rope["rope_theta"].is_null();
  if (!bare) write_rope(read_whole_rope(config), olmo.json);
  const RenamedMixer attention = read_olmo_attention(config, olmo.sizes.dim, olmo.norm_eps),
                     linear = read_olmo_delta_net(config, olmo.sizes.dim);
  for (int64_t i = 0; i < olmo.sizes.layers; ++i) {
    const bool usual = i % 4 == 3 || (olmo.sizes.layers < 4 && i + 1 == olmo.sizes.layers);
    const std::string type =
        type_of_layer(config, olmo, i, "linear_attention", usual ? "full_attention" : "linear_attention");
    const bool full = type == "full_attention";
    olmo.add(full ? attention : linear, full ? "self_attn" : "linear_attn", /*after=*/full);
  }
  return std::move(olmo).model(config);
}

}  // namespace

std::vector<Architecture> olmo_architectures() {
  return {{"olmo2", read_olmo2}, {"olmo3", read_olmo3}, {"olmo_hybrid", read_olmo_hybrid}};
}

}  // namespace cortado
