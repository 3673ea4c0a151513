// GGUF files of hybrids with experts: Nemotron-H and Nemotron-3, Kimi Linear, MiniMax-01, gpt-oss.
#include "cortado/models/pretrained/gguf_export_parts.h"
#include "cortado/models/pretrained/rope.h"

namespace cortado {
namespace {

// Experts that are chosen by sigmoids and a bias, as in DeepSeek-V3.
void put_grouped(RenamedFile& made, const ExpertChoice& experts) {
  made.config.update({{"num_experts_per_tok", experts.per_token},
                      {"norm_topk_prob", experts.normalized},
                      {"routed_scaling_factor", experts.scale},
                      {"n_group", experts.groups},
                      {"topk_group", experts.groups_per_token}});
  made.file.put_whole("expert_used_count", experts.per_token);
  made.file.put_whole("expert_group_count", experts.groups);
  made.file.put_whole("expert_group_used_count", experts.groups_per_token);
  made.file.put("expert_weights_norm", experts.normalized);
  made.file.put_number("expert_weights_scale", experts.scale);
  made.file.put_whole("expert_gating_func", 2);  // sigmoid
}

void put_nemotron_experts(RenamedFile& made) {
  const FeedForwardConfig& mixture = made.ours.feed_forward;
  const ExpertChoice& experts = mixture.experts;
  put_grouped(made, experts);
  made.config.update({{"n_routed_experts", experts.count},
                      {"moe_intermediate_size", mixture.dim},
                      {"moe_shared_expert_intermediate_size", experts.shared}});
  made.file.put_whole("expert_count", experts.count);
  made.file.put_whole("expert_shared_count", 1);
  made.file.put_whole("expert_feed_forward_length", mixture.dim);
  made.file.put_whole("expert_shared_feed_forward_length", experts.shared);
  if (experts.latent == 0) return;
  made.config["moe_latent_size"] = experts.latent;
  made.file.put_whole("moe_latent_size", experts.latent);
}

// Every mixer and every feed-forward is a block of the file.
void put_nemotron_blocks(RenamedFile& made) {
  const ModelConfig& ours = made.ours;
  const bool mixed = ours.feed_forward.kind == FeedForwardKind::kExperts;
  const auto keys = made.config["num_key_value_heads"].get<int32_t>();
  std::vector<int32_t> key_heads, widths;
  const auto add = [&](const char* kind, int32_t heads, int64_t width) {
    made.config["layers_block_type"].push_back(kind);
    key_heads.push_back(heads);
    widths.push_back(static_cast<int32_t>(width));
  };
  for (size_t i = 0; i < ours.layers.size(); ++i) {
    const bool attends = ours.layers[i]["mixer"] == "softmax";
    add(attends ? "attention" : "mamba", attends ? keys : 0, 0);
    const FeedForwardConfig own = ours.feed_forward_of(static_cast<int64_t>(i));
    if (own.kind == FeedForwardKind::kNone) continue;
    expect_in_llama_cpp(own.kind == ours.feed_forward.kind, "experts and other feed-forwards in one Nemotron-H");
    add(mixed ? "moe" : "mlp", 0, own.dim);
  }
  made.config["num_hidden_layers"] = key_heads.size();
  made.file.put_whole("attention.head_count", made.config["num_attention_heads"].get<int64_t>());
  made.file.put("attention.head_count_kv", key_heads);
  made.file.put("feed_forward_length", widths);
}

// Without the usual smallest step of Mamba-2, which transformers alone has, and which trained models hardly reach.
ModelConfig without_smallest_step(const ModelConfig& ours) {
  constexpr double kUsualStep = 0.001;
  ModelConfig plain = ours;
  for (Json& layer : plain.layers) {
    if (layer.contains("step_min") && layer["step_min"] <= kUsualStep) layer["step_min"] = 0.0;
  }
  return plain;
}

}  // namespace

void describe_nemotron_h(RenamedFile& made) {
  const ModelConfig& ours = made.ours;
  const Json& mixer = layer_of(ours, "mamba2");
  const bool mixed = ours.feed_forward.kind == FeedForwardKind::kExperts;
  const int64_t heads = whole_of(mixer, "heads", ours.heads);
  const int64_t width = mixer.contains("width") ? whole_of(mixer, "width", 0) : whole_of(mixer, "expand", 2) * ours.dim;
  expect_in_llama_cpp(!ours.tied, "head of nemotron_h that is the embedding");
  expect_in_llama_cpp(!mixer.value("bias", false), "mamba2 layers with \"bias\" in hybrids");
  put_attention(made);
  put_nemotron_blocks(made);
  made.layout = {.feed_forward_norm = "attn_norm", .separate_blocks = true, .groups = whole_of(mixer, "groups", 1)};
  made.config.update({{"model_type", "nemotron_h"},
                      {"mamba_num_heads", heads},
                      {"mamba_head_dim", width / heads},
                      {"n_groups", made.layout.groups},
                      {"ssm_state_size", whole_of(mixer, "state", 128)},
                      {"conv_kernel", whole_of(mixer, "taps", 4)},
                      {"use_conv_bias", mixer.value("conv_bias", true)},
                      {"intermediate_size", mixed ? 1 : ours.feed_forward.dim}});
  made.put(kNemotronNames);
  made.file.put_whole("ssm.inner_size", width);
  made.file.put_number("attention.layer_norm_epsilon", ours.norm_eps);
  made.config["time_step_min"] = 0.0;
  made.plain = without_smallest_step(ours);
  if (mixed) put_nemotron_experts(made);
}

// llama.cpp's layers of both kinds have equally many heads, and its first layers are those without experts.
void describe_kimi_linear(RenamedFile& made) {
  const ModelConfig& ours = made.ours;
  const Json &kda = layer_of(ours, "kda"), &mla = layer_of(ours, "mla");
  const int64_t heads = whole_of(mla, "heads", ours.heads), head = whole_of(mla, "head_dim", 0),
                shared = whole_of(mla, "shared_dim", 0), rank = whole_of(mla, "rank", 0);
  expect_in_llama_cpp(whole_of(kda, "heads", ours.heads) == heads,
                      "kda and mla layers with different numbers of heads");
  expect_in_llama_cpp(!mla.contains("q_rank") && !mla.value("bias", false),
                      "low-rank maps of queries or biases in the mla layers of kimi-linear");
  const auto layers = static_cast<int64_t>(ours.layers.size());
  int64_t dense = 0;
  while (dense < layers && ours.feed_forward_of(dense).kind != FeedForwardKind::kExperts) ++dense;
  expect_in_llama_cpp(dense < layers, "kimi-linear without experts");
  const FeedForwardConfig mixture = ours.feed_forward_of(dense);
  expect_in_llama_cpp(mixture.experts.normalized && mixture.experts.shared % mixture.dim == 0,
                      "experts of kimi-linear whose weights do not sum to one, or with a shared one of another width");
  put_grouped(made, mixture.experts);
  std::vector<int32_t> key_heads;
  for (const Json& layer : ours.layers) {
    key_heads.push_back(layer["mixer"] == "mla" ? 1 : 0);
    made.config["layer_types"].push_back(key_heads.back() > 0 ? "full_attention" : "linear_attention");
  }
  made.config.update({{"model_type", "kimi_linear"},
                      {"num_attention_heads", heads},
                      {"num_key_value_heads", heads},
                      {"linear_num_heads", heads},
                      {"linear_head_dim", whole_of(kda, "head_dim", 0)},
                      {"linear_conv_kernel_dim", whole_of(kda, "taps", 4)},
                      {"kv_lora_rank", rank},
                      {"qk_rope_head_dim", shared},
                      {"qk_nope_head_dim", head},
                      {"v_head_dim", whole_of(mla, "value_head_dim", 0)},
                      {"intermediate_size", dense > 0 ? ours.feed_forward_of(0).dim : mixture.dim},
                      {"first_k_dense_replace", dense},
                      {"num_experts", mixture.experts.count},
                      {"moe_intermediate_size", mixture.dim},
                      {"num_shared_experts", mixture.experts.shared / mixture.dim}});
  made.put(kKimiNames);
  made.file.put_whole("attention.head_count", heads);
  made.file.put("attention.head_count_kv", key_heads);
  made.file.put_whole("attention.key_length", rank + shared);
  made.file.put_whole("attention.value_length", rank);
  made.file.put_whole("attention.key_length_mla", head + shared);
  made.file.put_whole("leading_dense_block_count", dense);
}

// The file has a factor of the stream, and its branches have none. Here the embedding is divided by the factor, and the
// branches and the norms' epsilon are (architectures/minimax.cpp).
void describe_minimax(RenamedFile& made) {
  const ModelConfig& ours = made.ours;
  const FeedForwardConfig& mixture = ours.feed_forward;
  const double stream = 1 / ours.embedding_scale.value_or(1), experts = stream * mixture.experts.scale;
  put_attention(made);
  put_rope_of(made);
  std::vector<bool> recurrent;
  for (const Json& layer : ours.layers) {
    recurrent.push_back(layer["mixer"] != "softmax");
    made.config["layer_types"].push_back(recurrent.back() ? "linear_attention" : "full_attention");
  }
  made.config.update({{"model_type", "minimax"},
                      {"intermediate_size", mixture.dim},
                      {"num_local_experts", mixture.experts.count},
                      {"num_experts_per_tok", mixture.experts.per_token}});
  made.put(kHeadNames);
  made.file.put("attention.recurrent_layers", recurrent);
  made.file.put_number("residual_scale", stream);
  made.file.put_whole("feed_forward_length", mixture.dim);
  made.file.put_whole("expert_count", mixture.experts.count);
  made.file.put_whole("expert_used_count", mixture.experts.per_token);
  made.plain = ours;
  made.plain->embedding_scale.reset();
  made.plain->norm_eps = made.config["rms_norm_eps"];
  made.plain->feed_forward.experts.scale = 1;
  made.factor = [=](const std::string& weight) {
    if (weight.ends_with(".mixer.norm.weight")) return stream;  // lightning attention's
    if (weight.ends_with(".down.weight")) return experts;
    const bool softmax = weight.ends_with(".mixer.o.weight") && !recurrent[std::stoul(weight.substr(7))];
    return softmax ? stream : 1.0;
  };
}

namespace {

// Files of gpt-oss do not say that yarn's bounds are no whole channels. (llama.cpp rounds them.)
void put_gpt_oss_scaling(RotaryScaling scaling, GgufModel& file) {
  expect_in_llama_cpp(!scaling.truncate, "yarn with \"truncate\" in gpt-oss");
  scaling.truncate = true;
  put_gguf_scaling(scaling, file);
}

}  // namespace

void describe_gpt_oss(RenamedFile& made) {
  const ModelConfig& ours = made.ours;
  const Json &full = layer_of(ours, "softmax"), &sliding = layer_of(ours, "sliding_window");
  const FeedForwardConfig& mixture = ours.feed_forward;
  expect_in_llama_cpp(full.value("sinks", false), "model with windows and experts, but for gpt-oss");
  expect_in_llama_cpp(full.value("bias", false) && mixture.bias, "gpt-oss without biases");
  expect_in_llama_cpp(!ours.tied, "head of gpt-oss that is the embedding");
  put_attention(made);
  made.put(kHeadNames);
  made.layout.feed_forward_norm = "post_attention_norm";
  Json rope = rope_scaling_json(ours.rope_scaling);
  if (rope.is_null()) rope = {{"rope_type", "default"}};
  rope["rope_theta"] = ours.rope_theta;
  made.config.update({{"model_type", "gpt_oss"},
                      {"rope_parameters", rope},
                      {"intermediate_size", mixture.dim},
                      {"num_local_experts", mixture.experts.count},
                      {"num_experts_per_tok", mixture.experts.per_token},
                      {"attention_bias", true},
                      {"sliding_window", sliding["window"]}});
  made.file.put_number("rope.freq_base", ours.rope_theta);
  made.file.put_whole("rope.dimension_count", made.config["head_dim"].get<int64_t>());
  if (ours.rope_scaling.type != RotaryScaling::Type::kNone) put_gpt_oss_scaling(ours.rope_scaling, made.file);
  made.file.put_whole("attention.sliding_window", sliding["window"]);
  made.file.put_whole("feed_forward_length", mixture.dim);
  made.file.put_whole("expert_feed_forward_length", mixture.dim);
  made.file.put_whole("expert_count", mixture.experts.count);
  made.file.put_whole("expert_used_count", mixture.experts.per_token);
}

}  // namespace cortado
