// GGUF files of hybrids, and of models with experts.
#include <cmath>

#include "cortado/models/pretrained/gguf_export_parts.h"
#include "cortado/models/pretrained/rope.h"

namespace cortado {
namespace {

void put_qwen_experts(RenamedFile& made) {
  const ModelConfig& ours = made.ours;
  made.config.update({{"num_experts", ours.feed_forward.experts.count},
                      {"num_experts_per_tok", ours.feed_forward.experts.per_token},
                      {"moe_intermediate_size", ours.feed_forward.dim},
                      {"norm_topk_prob", true}});
  made.put(kExpertNames);
}

// llama.cpp's files of Qwen3.5 have text, height and width turn parts of a head, which are equal for text.
void put_sections(RenamedFile& made) {
  const double turned = layer_of(made.ours, "softmax").value("rotary_fraction", 1.0);
  const auto pairs = static_cast<int32_t>(turned * made.config["head_dim"].get<double>() / 2);
  made.file.put("rope.dimension_sections", std::vector<int32_t>{(pairs + 2) / 3, (pairs + 1) / 3, pairs / 3, 0});
}

// What OLMo-2 and OLMo-3 share.
void put_olmo(RenamedFile& made) {
  const Json& mixer = layer_of(made.ours, "softmax");
  expect_in_llama_cpp(mixer.value("qk_norm_type", "per_head") == "per_layer" && !mixer.value("bias", false),
                      "architecture with such softmax layers, norms and feed-forwards");
  expect_in_llama_cpp(!made.ours.tied, "head of olmo2 that is the embedding");
  put_attention(made);
  expect_whole_width(made);
  made.put(kHeadNames);
  made.config["intermediate_size"] = made.ours.feed_forward.dim;
  made.file.put_whole("feed_forward_length", made.ours.feed_forward.dim);
}

}  // namespace

void describe_lfm2(RenamedFile& made) {
  const ModelConfig& ours = made.ours;
  const Json& mixer = layer_of(ours, "gated_short_conv");
  const int64_t taps = whole_of(mixer, "taps", 3);
  put_attention(made);
  expect_whole_width(made);
  put_hybrid_heads(made);
  put_rope_of(made);
  for (const Json& layer : ours.layers)
    made.config["layer_types"].push_back(layer["mixer"] == "softmax" ? "full_attention" : "conv");
  made.layout.last_norm = "token_embd_norm";
  made.config.update({{"model_type", "lfm2"},
                      {"intermediate_size", ours.feed_forward.dim},
                      {"block_auto_adjust_ff_dim", false},
                      {"conv_L_cache", taps},
                      {"conv_bias", false}});
  made.file.put_whole("shortconv.l_cache", taps);
  made.file.put_whole("feed_forward_length", ours.feed_forward.dim);
}

void describe_olmo2(RenamedFile& made) {
  put_olmo(made);
  put_rope_of(made);
  made.config["model_type"] = "olmo2";
}

// Windows have the model's positions. Those of full attention may be stretched.
void describe_olmo3(RenamedFile& made) {
  const ModelConfig& ours = made.ours;
  const Json &full = layer_of(ours, "softmax"), &sliding = layer_of(ours, "sliding_window");
  put_olmo(made);
  expect_in_llama_cpp(ours.rope_scaling.type == RotaryScaling::Type::kNone, "stretched positions in windows of olmo2");
  RotaryScaling scaling;
  if (full.contains("rope_scaling")) scaling = RotaryScaling::from_json(full["rope_scaling"], "[export]");
  const double theta = full.value("rope_theta", ours.rope_theta);
  std::vector<bool> slides;
  for (const Json& layer : ours.layers) {
    slides.push_back(layer["mixer"] == "sliding_window");
    made.config["layer_types"].push_back(slides.back() ? "sliding_attention" : "full_attention");
  }
  made.config.update({{"model_type", "olmo3"},
                      {"sliding_window", sliding["window"]},
                      {"rope_theta", theta},
                      {"rope_local_base_freq", ours.rope_theta},
                      {"rope_scaling", rope_scaling_json(scaling)}});
  made.file.put_whole("attention.sliding_window", sliding["window"]);
  made.file.put("attention.sliding_window_pattern", slides);
  made.file.put_number("rope.freq_base", theta);
  made.file.put_number("rope.freq_base_swa", ours.rope_theta);
  made.file.put_whole("rope.dimension_count", made.config["head_dim"].get<int64_t>());
  if (scaling.type != RotaryScaling::Type::kNone) put_gguf_scaling(scaling, made.file);
}

void describe_qwen3_moe(RenamedFile& made) {
  put_attention(made);
  put_rope_of(made);
  made.config.update({{"model_type", "qwen3_moe"}, {"attention_bias", made.ours.layers[0].value("bias", false)}});
  expect_in_llama_cpp(!made.config["attention_bias"].get<bool>(), "biases in the attention of qwen3moe");
  made.put(kHeadNames);
  put_qwen_experts(made);
  made.file.put_whole("feed_forward_length", made.ours.feed_forward.dim);
}

void describe_qwen3_5(RenamedFile& made) {
  const ModelConfig& ours = made.ours;
  const Json& mixer = layer_of(ours, "gated_delta_net");
  const int64_t heads = whole_of(mixer, "heads", ours.heads), keys = whole_of(mixer, "key_heads", heads);
  const int64_t head = whole_of(mixer, "head_dim", 0), value = whole_of(mixer, "value_head_dim", 0);
  expect_in_llama_cpp(head > 0 && head == value, "Gated DeltaNet whose heads of keys and values differ in size");
  put_attention(made);
  put_rope_of(made);
  const bool mixed = ours.feed_forward.kind == FeedForwardKind::kExperts;
  for (const Json& layer : ours.layers)
    made.config["layer_types"].push_back(layer["mixer"] == "softmax" ? "full_attention" : "linear_attention");
  made.config.update({{"model_type", "qwen3_5_text"},
                      {"linear_num_key_heads", keys},
                      {"linear_num_value_heads", heads},
                      {"linear_key_head_dim", head},
                      {"linear_value_head_dim", value},
                      {"linear_conv_kernel_dim", whole_of(mixer, "taps", 4)}});
  made.layout = {.feed_forward_norm = "post_attention_norm",
                 .one_plus = true,
                 .key_heads = keys,
                 .per_key = heads / keys,
                 .key_dim = head,
                 .value_dim = value,
                 .tiled = true};
  made.put(kHeadNames);
  made.put(kDeltaNames);
  put_sections(made);
  made.file.put_whole("ssm.inner_size", heads * value);
  std::vector<bool> recurrent;
  for (const Json& layer : ours.layers) recurrent.push_back(layer["mixer"] != "softmax");
  made.file.put("attention.recurrent_layers", recurrent);
  made.file.put_whole("feed_forward_length", ours.feed_forward.dim);
  if (!mixed) {
    made.config.update({{"num_experts", 0}, {"intermediate_size", ours.feed_forward.dim}});
    return;
  }
  put_qwen_experts(made);
  made.config["shared_expert_intermediate_size"] = ours.feed_forward.experts.shared;
  made.file.put_whole("expert_shared_feed_forward_length", ours.feed_forward.experts.shared);
}

}  // namespace cortado
