// GGUF files of Mamba, and of its hybrids.
#include <cmath>

#include "cortado/models/pretrained/gguf_export_parts.h"

namespace cortado {
namespace {

void put_mixer_only(RenamedFile& made) {
  expect_in_llama_cpp(made.ours.feed_forward.kind == FeedForwardKind::kNone, "feed-forward in layers of Mamba alone");
  made.file.put_whole("feed_forward_length", 0);
  made.file.put_whole("attention.head_count", 0);
}

void put_granite_feed_forward(RenamedFile& made) {
  const ModelConfig& ours = made.ours;
  if (ours.feed_forward.kind != FeedForwardKind::kExperts) {
    made.config.update({{"num_local_experts", 0}, {"shared_intermediate_size", ours.feed_forward.dim}});
    made.file.put_whole("feed_forward_length", ours.feed_forward.dim);
    return;
  }
  made.config.update({{"num_local_experts", ours.feed_forward.experts.count},
                      {"num_experts_per_tok", ours.feed_forward.experts.per_token},
                      {"intermediate_size", ours.feed_forward.dim},
                      {"shared_intermediate_size", ours.feed_forward.experts.shared}});
  made.file.put_whole("feed_forward_length", ours.feed_forward.dim);
  made.file.put_whole("expert_count", ours.feed_forward.experts.count);
  made.file.put_whole("expert_used_count", ours.feed_forward.experts.per_token);
  made.file.put_whole("expert_shared_feed_forward_length", ours.feed_forward.experts.shared);
}

void put_granite_multipliers(RenamedFile& made) {
  const ModelConfig& ours = made.ours;
  const double usual = 1 / std::sqrt(made.config["head_dim"].get<double>());
  const double scale = layer_of(ours, "softmax").value("scale", usual);
  const double residual = std::sqrt(made.config["rms_norm_eps"].get<double>() / ours.norm_eps);
  const double embedding = ours.embedding_scale.value_or(1.0) * residual;
  made.config.update({{"attention_multiplier", scale},
                      {"embedding_multiplier", embedding},
                      {"residual_multiplier", residual},
                      {"logits_scaling", 1.0}});
  made.file.put_number("attention.scale", scale);
  made.file.put_number("embedding_scale", embedding);
  made.file.put_number("residual_scale", residual);
  made.file.put_number("logit_scale", 1.0);
}

}  // namespace

void describe_mamba(RenamedFile& made) {
  const Json& mixer = made.ours.layers[0];
  const int64_t expand = whole_of(mixer, "expand", 2);
  const bool normed = mixer.value("select_norm", false), bias = mixer.value("bias", false);
  expect_in_llama_cpp(expand == 2 && !bias && mixer.value("conv_bias", true),
                      "mamba layers with another \"expand\" than 2, with \"bias\" or without \"conv_bias\"");
  made.config.update({{"model_type", normed ? "falcon_mamba" : "mamba"},
                      {"intermediate_size", expand * made.ours.dim},
                      {"state_size", whole_of(mixer, "state", 16)},
                      {"conv_kernel", whole_of(mixer, "taps", 4)},
                      {"time_step_rank", whole_of(mixer, "step_rank", (made.ours.dim + 15) / 16)},
                      {"use_bias", bias},
                      {"use_conv_bias", true},
                      {"mixer_rms_eps", 1e-6}});
  put_mixer_only(made);
  made.put(kMambaNames);
  made.file.put("ssm.dt_b_c_rms", normed);
}

void describe_mamba2(RenamedFile& made) {
  const Json& mixer = made.ours.layers[0];
  const bool bias = mixer.value("bias", false);
  expect_in_llama_cpp(!bias && mixer.value("conv_bias", true), "mamba2 layers with \"bias\" or without \"conv_bias\"");
  made.layout.groups = whole_of(mixer, "groups", 1);
  made.config.update({{"model_type", "mamba2"},
                      {"expand", whole_of(mixer, "expand", 2)},
                      {"num_heads", whole_of(mixer, "heads", made.ours.heads)},
                      {"n_groups", made.layout.groups},
                      {"state_size", whole_of(mixer, "state", 128)},
                      {"conv_kernel", whole_of(mixer, "taps", 4)},
                      {"use_bias", bias},
                      {"use_conv_bias", true}});
  put_mixer_only(made);
  made.put(kMamba2Names);
  made.file.put_whole("ssm.inner_size", whole_of(mixer, "expand", 2) * made.ours.dim);
}

void describe_jamba(RenamedFile& made) {
  const Json& mixer = layer_of(made.ours, "mamba");
  const ModelConfig& ours = made.ours;
  expect_in_llama_cpp(
      whole_of(mixer, "expand", 2) == 2 && !mixer.value("bias", false) && mixer.value("conv_bias", true),
      "mamba layers with another \"expand\" than 2, with \"bias\" or without \"conv_bias\"");
  put_attention(made);
  expect_whole_width(made);
  put_hybrid_heads(made);
  std::vector<int64_t> attends;
  for (size_t i = 0; i < ours.layers.size(); ++i) {
    if (ours.layers[i]["mixer"] == "softmax") attends.push_back(static_cast<int64_t>(i));
  }
  const auto layers = static_cast<int64_t>(ours.layers.size());
  const int64_t period = attends.size() > 1 ? attends[1] - attends[0] : layers;
  expect_in_llama_cpp(attends[0] < period, "layers of attention at irregular distances");
  const bool mixed = ours.feed_forward.kind == FeedForwardKind::kExperts;
  made.config.update({{"model_type", "jamba"},
                      {"attn_layer_period", period},
                      {"attn_layer_offset", attends[0]},
                      {"intermediate_size", ours.feed_forward.dim},
                      {"num_experts", mixed ? ours.feed_forward.experts.count : 1},
                      {"num_experts_per_tok", mixed ? ours.feed_forward.experts.per_token : 1},
                      {"expert_layer_period", 1},
                      {"expert_layer_offset", 0},
                      {"mamba_expand", 2},
                      {"mamba_dt_rank", whole_of(mixer, "step_rank", (ours.dim + 15) / 16)},
                      {"mamba_d_state", whole_of(mixer, "state", 16)},
                      {"mamba_d_conv", whole_of(mixer, "taps", 4)},
                      {"mamba_proj_bias", false},
                      {"mamba_conv_bias", true}});
  made.put(kJambaNames);
  made.file.put_whole("ssm.inner_size", 2 * ours.dim);
  made.file.put_whole("feed_forward_length", ours.feed_forward.dim);
  if (!mixed) return;
  made.file.put_whole("expert_count", ours.feed_forward.experts.count);
  made.file.put_whole("expert_used_count", ours.feed_forward.experts.per_token);
}

void describe_granite_hybrid(RenamedFile& made) {
  const Json& mixer = layer_of(made.ours, "mamba2");
  expect_in_llama_cpp(
      whole_of(mixer, "expand", 2) == 2 && !mixer.value("bias", false) && mixer.value("conv_bias", true),
      "mamba2 layers with another \"expand\" than 2, with \"bias\" or without \"conv_bias\" in hybrids");
  put_attention(made);
  put_hybrid_heads(made);
  const bool rotary = made.ours.positions == PositionKind::kRotary;
  // llama.cpp's converter orders the rows of whole heads as pairs, although it then turns the first ones only.
  expect_in_llama_cpp(!rotary || layer_of(made.ours, "softmax").value("rotary_fraction", 1.0) == 1.0,
                      "rotary positions on a part of each head in granitehybrid");
  if (rotary) put_rope_of(made);
  if (!rotary) made.file.put_whole("rope.dimension_count", made.config["head_dim"].get<int64_t>());
  made.file.put("rope.scaling.finetuned", rotary);
  for (const Json& layer : made.ours.layers)
    made.config["layer_types"].push_back(layer["mixer"] == "softmax" ? "attention" : "mamba");
  made.layout.groups = whole_of(mixer, "groups", 1);
  made.layout.paired_heads = made.config["num_attention_heads"];
  made.layout.paired_key_heads = made.config["num_key_value_heads"];
  made.config.update({{"model_type", "granitemoehybrid"},
                      {"position_embedding_type", rotary ? "rope" : "nope"},
                      {"attention_bias", layer_of(made.ours, "softmax").value("bias", false)},
                      {"mamba_expand", 2},
                      {"mamba_n_heads", whole_of(mixer, "heads", made.ours.heads)},
                      {"mamba_n_groups", made.layout.groups},
                      {"mamba_d_state", whole_of(mixer, "state", 128)},
                      {"mamba_d_conv", whole_of(mixer, "taps", 4)},
                      {"mamba_proj_bias", false},
                      {"mamba_conv_bias", true}});
  put_granite_multipliers(made);
  put_granite_feed_forward(made);
  made.put(kMamba2PartNames);
  made.file.put_whole("ssm.inner_size", 2 * made.ours.dim);
}

}  // namespace cortado
