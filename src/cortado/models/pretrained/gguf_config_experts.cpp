// The configs of GGUF files of hybrids with experts: Nemotron-H and Nemotron-3, Kimi Linear, MiniMax-01.
#include <algorithm>

#include "cortado/models/pretrained/gguf_keys.h"

namespace cortado {
namespace {

// Experts that are chosen by sigmoids and a bias, as in DeepSeek-V3.
void read_grouped(GgufKeys& keys, bool normalized, Json& config) {
  config.update({{"num_experts_per_tok", keys.size("expert_used_count")},
                 {"norm_topk_prob", keys.metadata.boolean(keys.key("expert_weights_norm"), normalized)},
                 {"routed_scaling_factor", keys.factor("expert_weights_scale").value_or(1)},
                 {"n_group", std::max<int64_t>(1, keys.size("expert_group_count", 1))},
                 {"topk_group", std::max<int64_t>(1, keys.size("expert_group_used_count", 1))}});
}

// The number that all layers have which have one at all; 0: none has.
int64_t only_width(const GgufKeys& keys, const std::vector<int64_t>& widths) {
  int64_t only = 0;
  for (const int64_t width : widths) {
    keys.file.fail_if(width > 0 && only > 0 && width != only,
                      "has feed-forwards of different widths, which is not supported");
    if (width > 0) only = width;
  }
  return only;
}

void read_nemotron_gguf_experts(GgufKeys& keys, int64_t hidden, Json& config) {
  const int64_t own = only_width(keys, keys.per_layer("expert_feed_forward_length"));
  read_grouped(keys, false, config);
  config.update({{"n_routed_experts", keys.size("expert_count")},
                 {"moe_intermediate_size", own > 0 ? own : hidden},
                 {"moe_shared_expert_intermediate_size", keys.size("expert_shared_feed_forward_length")}});
  if (const int64_t latent = keys.size("moe_latent_size", 0); latent > 0) config["moe_latent_size"] = latent;
}

}  // namespace

// Every part of Nemotron-H is a block: those with key heads are attention, and those with a width feed-forwards, which
// are experts in Nemotron-3. llama.cpp has no smallest step in Mamba-2.
void read_gguf_nemotron_h(GgufKeys& keys, GgufConfig& read) {
  Json& config = read.config;
  const bool mixed = keys.size("expert_count", 0) > 0;
  const std::vector<bool> attends = read_gguf_hybrid_heads(keys, config);
  read_gguf_head(keys, config);
  int64_t recurrent = 0;
  const std::vector<int64_t> widths = keys.per_layer("feed_forward_length");
  const int64_t hidden = only_width(keys, widths);
  for (int64_t i = 0; i < keys.layers; ++i) {
    const char* feed_forward = mixed ? "moe" : "mlp";
    config["layers_block_type"].push_back(widths[i] > 0 ? feed_forward : attends[i] ? "attention" : "mamba");
    if (keys.has(i, "ssm_in.weight")) recurrent = i;
  }
  keys.copy(kNemotronNames, config);
  read.layout = {.feed_forward_norm = "attn_norm", .separate_blocks = true, .groups = keys.size("ssm.group_count")};
  config.update({{"model_type", "nemotron_h"},
                 {"mamba_head_dim", keys.times("ssm.inner_size", config["mamba_num_heads"].get<int64_t>())},
                 {"intermediate_size", std::max<int64_t>(1, hidden)},
                 {"time_step_min", 0.0},
                 {"max_position_embeddings", keys.size("context_length", 0)},
                 {"use_conv_bias", keys.has(recurrent, "ssm_conv1d.bias")}});
  if (mixed) read_nemotron_gguf_experts(keys, hidden, config);
}

void read_gguf_kimi_linear(GgufKeys& keys, GgufConfig& read) {
  Json& config = read.config;
  const std::vector<bool> attends = read_gguf_hybrid_heads(keys, config);
  const int64_t heads = config["num_attention_heads"], shared = keys.size("rope.dimension_count");
  const int64_t key = keys.size("attention.key_length_mla"), scores = keys.size("expert_gating_func");
  keys.file.fail_if(keys.size("attention.q_lora_rank", 0) != 0, "has \"", keys.key("attention.q_lora_rank"),
                    "\", which llama.cpp does not compute");
  keys.file.fail_if(scores != kGgufSigmoid, "has \"", keys.key("expert_gating_func"), "\" ", scores,
                    ", which is not supported; supported: ", kGgufSigmoid, " (sigmoid)");
  keys.file.fail_if(key <= shared, "has \"", keys.key("attention.key_length_mla"), "\" ", key, ", expected more than ",
                    shared);
  for (const bool attend : attends) config["layer_types"].push_back(attend ? "full_attention" : "linear_attention");
  read_grouped(keys, true, config);
  keys.copy(kKimiNames, config);
  config.update({{"model_type", "kimi_linear"},
                 {"num_key_value_heads", heads},
                 {"linear_num_heads", heads},
                 {"qk_nope_head_dim", key - shared},
                 {"first_k_dense_replace", keys.size("leading_dense_block_count", 0)},
                 {"max_position_embeddings", keys.size("context_length", 0)}});
}

void read_gguf_minimax(GgufKeys& keys, GgufConfig& read) {
  Json& config = read.config;
  keys.copy(kHeadNames, config);
  read_gguf_rope(keys, read_gguf_head(keys, config), read);
  const std::vector<bool> recurrent = keys.recurrent_layers(8);
  for (const bool linear : recurrent) config["layer_types"].push_back(linear ? "linear_attention" : "full_attention");
  const double stream = keys.factor("residual_scale").value_or(1);
  for (const char* name : {"mlp_alpha_factor", "full_attn_alpha_factor", "linear_attn_alpha_factor"})
    config[name] = stream;
  config.update({{"model_type", "minimax"},
                 {"intermediate_size", keys.size("feed_forward_length")},
                 {"num_local_experts", keys.size("expert_count")},
                 {"num_experts_per_tok", keys.size("expert_used_count")}});
}

}  // namespace cortado
