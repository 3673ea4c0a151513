// Qwen3-MoE of transformers: Qwen3's attention, and experts in every layer.
#include "cortado/models/pretrained/renamed.h"
#include "cortado/models/pretrained/rope.h"

namespace cortado {
namespace {

RenamedMixer qwen3_attention(JsonReader& config, int64_t dim) {
  const int64_t heads = config.integer("num_attention_heads", 1, kMostHeads, 32);
  const int64_t key_heads = config.integer("num_key_value_heads", 1, kMostHeads, 4);
  // null: D / H, as where the class has no default.
  const int64_t head = config.has("head_dim") ? config.integer("head_dim", 1, 65536) : head_size(config, dim, heads);
  const bool bias = config.boolean("attention_bias", false);
  expect(config, "use_sliding_window", false);
  RenamedMixer mixer({{"mixer", "softmax"},
                      {"heads", heads},
                      {"kv_heads", key_heads},
                      {"head_dim", head},
                      {"bias", bias},
                      {"qk_norm", true},
                      {"norm_eps", config.number("rms_norm_eps", 0.0, 1.0, 1e-6)}});
  mixer.linear("q", "q_proj", heads * head, dim, bias);
  for (const char* name : {"k", "v"}) mixer.linear(name, concat(name, "_proj"), key_heads * head, dim, bias);
  mixer.linear("o", "o_proj", dim, heads * head, bias);
  for (const char* name : {"q_norm", "k_norm"}) mixer.norm(name, name, head);
  return mixer;
}

// Adds the experts' weights.
Json qwen3_experts(JsonReader& config, int64_t dim, RenamedWeights& weights) {
  expect(config, "mlp_only_layers", Json::array());
  expect(config, "decoder_sparse_step", 1);
  // transformers 5 calls it num_local_experts inside.
  const int64_t local = config.integer("num_local_experts", 1, 65536, 128);
  const int64_t count = config.integer("num_experts", 1, 65536, local);
  const int64_t hidden = config.integer("moe_intermediate_size", 1, kWidest, 768);
  weights.linear("feed_forward.router", "mlp.gate", count, dim);
  weights.experts("mlp.experts", {count, dim, hidden});
  return {{"type", "experts"},
          {"dim", hidden},
          {"experts", count},
          {"per_token", config.integer("num_experts_per_tok", 1, count, std::min<int64_t>(8, count))},
          {"normalized", config.boolean("norm_topk_prob", false)}};
}

RenamedModel read_qwen3_moe(JsonReader& config) {
  const ModelSizes sizes = read_sizes(config);
  const int64_t dim = sizes.dim;
  expect_silu(config);
  const bool tied = config.boolean("tie_word_embeddings", false);
  const PretrainedRope rope = read_rope(config);
  config.fail_if(rope.fraction != 1.0, "rotary positions on a part of each head are not supported");
  Json json = config_of(sizes, tied);
  json["norm_eps"] = config.number("rms_norm_eps", 0.0, 1.0, 1e-6);
  write_rope(rope, json);
  json["context"] = config.integer("max_position_embeddings", 0, int64_t{1} << 40, 32768);
  RenamedWeights weights, block;
  const RenamedMixer mixer = qwen3_attention(config, dim);
  json["layers"] = sizes.layers;
  json["mixer"] = mixer.settings;
  json["feed_forward"] = qwen3_experts(config, dim, block);
  block.norm("mixer_norm", "input_layernorm", dim);
  block.within("mixer", "self_attn", mixer);
  block.norm("feed_forward_norm", "post_attention_layernorm", dim);
  weights.map("embedding.weight", "model.embed_tokens.weight", {sizes.vocabulary, dim});
  for (int64_t i = 0; i < sizes.layers; ++i) weights.within(concat("layers.", i), concat("model.layers.", i), block);
  weights.norm("norm", "model.norm", dim);
  if (!tied) weights.map("head.weight", "lm_head.weight", {sizes.vocabulary, dim});
  return {{}, ModelConfig::from_json(json, config.place()), weights};
}

}  // namespace

std::vector<Architecture> qwen3_moe_architectures() { return {{"qwen3_moe", read_qwen3_moe}}; }

}  // namespace cortado
