// Qwen3-Next of transformers: Gated DeltaNet, softmax attention in every fourth layer, experts.
#include "cortado/models/pretrained/renamed.h"
#include "cortado/models/pretrained/rope.h"

namespace cortado {
namespace {

// Selects rows begin .. begin + size - 1 of each of `groups` equal parts.
std::function<Tensor(const Tensor&)> rows_of(int64_t groups, int64_t begin, int64_t size) {
  return [=](const Tensor& x) { return x.unflatten(0, {groups, -1}).narrow(1, begin, size).flatten(0, 1); };
}

// One map holds q, k, v and the output gate, another beta and the decay. Their rows are ordered by key head.
RenamedMixer delta_net(JsonReader& config, int64_t dim) {
  const int64_t key_heads = config.integer("linear_num_key_heads", 1, kMostHeads, 16);
  const int64_t heads = config.integer("linear_num_value_heads", 1, kMostHeads, 32);
  const int64_t head = config.integer("linear_key_head_dim", 1, 65536, 128);
  const int64_t value = config.integer("linear_value_head_dim", 1, 65536, 128);
  const int64_t taps = config.integer("linear_conv_kernel_dim", 1, 64, 4);
  config.fail_if(heads % key_heads != 0, "linear_num_value_heads (", heads,
                 ") is not divisible by linear_num_key_heads (", key_heads, ")");
  const int64_t keys = key_heads * head, values = heads * value, group = heads / key_heads, wide = group * value;
  RenamedMixer mixer({{"mixer", "gated_delta_net"},
                      {"heads", heads},
                      {"key_heads", key_heads},
                      {"head_dim", head},
                      {"value_head_dim", value},
                      {"taps", taps},
                      {"output_gate", "silu"},
                      {"norm_eps", config.number("rms_norm_eps", 0.0, 1.0, 1e-6)}});
  const Shape joint = {2 * keys + 2 * values, dim}, gates = {2 * heads, dim}, conv = {2 * keys + values, 1, taps};
  int64_t begin = 0;
  for (const auto& [name, rows] :
       {std::pair("q", head), std::pair("k", head), std::pair("v", wide), std::pair("gate", wide)}) {
    mixer.map(concat(name, ".weight"), "in_proj_qkvz.weight", joint, rows_of(key_heads, begin, rows));
    begin += rows;
  }
  mixer.map("beta.weight", "in_proj_ba.weight", gates, rows_of(key_heads, 0, group));
  mixer.map("decay.weight", "in_proj_ba.weight", gates, rows_of(key_heads, group, group));
  begin = 0;
  for (const auto& [name, rows] : {std::pair("q", keys), std::pair("k", keys), std::pair("v", values)}) {
    mixer.map(concat(name, "_conv.weight"), "conv1d.weight", conv,
              [=](const Tensor& x) { return x.squeeze(1).narrow(0, begin, rows); });
    begin += rows;
  }
  mixer.map("a_log", "A_log", {heads});
  mixer.map("dt_bias", "dt_bias", {heads});
  mixer.norm("norm", "norm", value);
  mixer.linear("o", "out_proj", dim, values);
  return mixer;
}

// Each head's query and output gate are adjacent rows of one map.
RenamedMixer attention(JsonReader& config, int64_t dim) {
  const int64_t heads = config.integer("num_attention_heads", 1, kMostHeads, 16);
  const int64_t key_heads = config.integer("num_key_value_heads", 1, kMostHeads, 2);
  const int64_t head = config.integer("head_dim", 1, 65536, 256);
  expect(config, "attention_bias", false);
  RenamedMixer mixer({{"mixer", "softmax"},
                      {"heads", heads},
                      {"kv_heads", key_heads},
                      {"head_dim", head},
                      {"rotary_fraction", read_rope(config, 0.25).fraction},
                      {"qk_norm", true},
                      {"norm_eps", config.number("rms_norm_eps", 0.0, 1.0, 1e-6)},
                      {"output_gate", true}});
  const Shape joint = {2 * heads * head, dim};
  mixer.map("q.weight", "q_proj.weight", joint, rows_of(heads, 0, head));
  mixer.map("gate.weight", "q_proj.weight", joint, rows_of(heads, head, head));
  for (const char* name : {"k", "v"}) mixer.linear(name, concat(name, "_proj"), key_heads * head, dim);
  mixer.linear("o", "o_proj", dim, heads * head);
  for (const char* name : {"q_norm", "k_norm"}) mixer.norm(name, name, head, /*zero_centred=*/true);
  return mixer;
}

// Whether the layer is softmax attention: by "layer_types", otherwise every "full_attention_interval"-th layer.
bool is_attention(JsonReader& config, int64_t layer) {
  const Json types = config.any("layer_types");
  const int64_t interval = config.integer("full_attention_interval", 1, kDeepest, 4);
  if (types.is_null()) return (layer + 1) % interval == 0;
  const bool there = types.is_array() && layer < static_cast<int64_t>(types.size()) && types[layer].is_string();
  const std::string type = there ? types[layer].get<std::string>() : "";
  // Later versions add the kind of linear attention; this model has one kind.
  config.fail_if(type != "full_attention" && type != "linear_attention" && !type.starts_with("linear_attention_"),
                 "\"layer_types\" must name each layer's, full_attention or linear_attention");
  return type == "full_attention";
}

// Reads the feed-forward, which must be of one kind in all layers, and adds its weights.
Json read_feed_forward(JsonReader& config, const ModelSizes& sizes, RenamedWeights& weights) {
  const int64_t dim = sizes.dim, experts = config.integer("num_experts", 0, 65536, 512);
  const Json dense = config.any("mlp_only_layers");
  if (experts == 0 || (dense.is_array() && static_cast<int64_t>(dense.size()) == sizes.layers)) {
    const int64_t hidden = config.integer("intermediate_size", 1, kWidest, 5632);
    weights.gated("feed_forward", "mlp", dim, hidden);
    return {{"type", "swiglu"}, {"dim", hidden}};
  }
  config.fail_if(!dense.is_null() && !dense.empty(), "\"mlp_only_layers\": ", dense.dump(),
                 " is not supported, only none or all of them");
  expect(config, "decoder_sparse_step", 1);
  const int64_t hidden = config.integer("moe_intermediate_size", 1, kWidest, 512);
  const int64_t shared = config.integer("shared_expert_intermediate_size", 1, kWidest, 512);
  weights.linear("feed_forward.shared_gate", "mlp.shared_expert_gate", 1, dim);
  weights.gated("feed_forward.shared", "mlp.shared_expert", dim, shared);
  weights.experts("feed_forward", "mlp", {experts, dim, hidden});
  return {{"type", "experts"},
          {"dim", hidden},
          {"experts", experts},
          {"per_token", config.integer("num_experts_per_tok", 1, experts, std::min<int64_t>(10, experts))},
          {"normalized", config.boolean("norm_topk_prob", true)},
          {"shared", shared}};
}

RenamedModel read_qwen3_next(JsonReader& config) {
  const ModelSizes sizes = read_sizes(config);
  const int64_t dim = sizes.dim;
  expect_silu(config);
  const bool tied = config.boolean("tie_word_embeddings", false);
  const PretrainedRope rope = read_rope(config, 0.25);
  Json json = config_of(sizes, tied);
  json["norm_eps"] = config.number("rms_norm_eps", 0.0, 1.0, 1e-6);
  json["positions"] = "rotary";
  json["rope_theta"] = rope.theta;
  if (rope.scaling.type != RotaryScaling::Type::kNone) json["rope_scaling"] = rope.scaling.to_json();
  json["context"] = config.integer("max_position_embeddings", 0, int64_t{1} << 40, 32768);
  const RenamedMixer linear = delta_net(config, dim), softmax = attention(config, dim);
  RenamedWeights weights, feed_forward;
  json["feed_forward"] = read_feed_forward(config, sizes, feed_forward);
  weights.map("embedding.weight", "model.embed_tokens.weight", {sizes.vocabulary, dim});
  for (int64_t i = 0; i < sizes.layers; ++i) {
    const bool full = is_attention(config, i);
    const RenamedMixer& mixer = full ? softmax : linear;
    json["layers"].push_back({{"mixer", mixer.settings}});
    RenamedWeights block = feed_forward;
    block.norm("mixer_norm", "input_layernorm", dim, /*zero_centred=*/true);
    block.within("mixer", full ? "self_attn" : "linear_attn", mixer);
    block.norm("feed_forward_norm", "post_attention_layernorm", dim, /*zero_centred=*/true);
    weights.within(concat("layers.", i), concat("model.layers.", i), block);
  }
  weights.norm("norm", "model.norm", dim, /*zero_centred=*/true);
  if (!tied) weights.map("head.weight", "lm_head.weight", {sizes.vocabulary, dim});
  // The layers for multi-token prediction, which transformers omits too.
  return {{}, ModelConfig::from_json(json, config.place()), weights, "mtp."};
}

}  // namespace

std::vector<Architecture> qwen3_next_architectures() { return {{"qwen3_next", read_qwen3_next}}; }

}  // namespace cortado
