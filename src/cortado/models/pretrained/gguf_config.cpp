// The configs of GGUF files whose models renamed.h reads, in the words of transformers' config.json.
#include <algorithm>
#include <cmath>
#include <set>
#include <span>

#include "cortado/models/pretrained/gguf_keys.h"
#include "cortado/models/pretrained/gguf_names.h"
#include "cortado/models/pretrained/gguf_rope.h"
#include "cortado/models/pretrained/rope.h"

namespace cortado {
namespace {

// What all architectures have. The layers for multi-token prediction come last and are left out.
Json read_sizes(GgufKeys& keys) {
  const int64_t blocks = keys.size("block_count"), predicted = keys.size("nextn_predict_layers", 0);
  keys.file.fail_if(blocks - predicted < 1 || blocks > kDeepest, "has ", blocks, " layers, ", predicted,
                    " of them for multi-token prediction");
  keys.layers = blocks - predicted;
  const std::string rms = keys.key("attention.layer_norm_rms_epsilon");
  const std::string other = keys.key("attention.layer_norm_epsilon");  // RWKV's, and Nemotron-H's early files'
  const double eps = keys.metadata.number(keys.metadata.has(rms)     ? rms
                                          : keys.metadata.has(other) ? other
                                                                     : rms,
                                          0.0, 1.0);
  return {{"vocab_size", gguf_vocabulary_size(keys.file)},
          {"hidden_size", keys.size("embedding_length")},
          {"num_hidden_layers", keys.layers},
          {"tie_word_embeddings", !keys.file.find("output.weight")},
          {"rms_norm_eps", eps},
          {"layer_norm_epsilon", eps},
          {"norm_eps", eps}};
}

void read_mamba(GgufKeys& keys, GgufConfig& read) {
  // FalconMamba is a Mamba with norms. The epsilon of these is not in the file; all published models have this one.
  const bool normed = keys.metadata.boolean(keys.key("ssm.dt_b_c_rms"), false);
  keys.copy(kMambaNames, read.config);
  read.config.update({{"model_type", normed ? "falcon_mamba" : "mamba"},
                      {"use_bias", keys.has(0, "ssm_in.bias")},
                      {"use_conv_bias", keys.has(0, "ssm_conv1d.bias")},
                      {"mixer_rms_eps", 1e-6}});
}

void read_mamba2(GgufKeys& keys, GgufConfig& read) {
  read.layout.groups = keys.size("ssm.group_count");
  keys.copy(kMamba2Names, read.config);
  read.config.update({{"model_type", "mamba2"},
                      {"expand", keys.times("ssm.inner_size", read.config["hidden_size"].get<int64_t>())},
                      {"use_bias", keys.has(0, "ssm_in.bias")},
                      {"use_conv_bias", keys.has(0, "ssm_conv1d.bias")}});
}

// Jamba's config names its layers of attention by a period and an offset.
void read_period(const GgufKeys& keys, const std::vector<bool>& attends, Json& config) {
  const int64_t offset = first_of(attends, true);
  int64_t period = keys.layers;
  for (int64_t i = offset + 1; i < keys.layers; ++i) {
    if (attends[i]) period = std::min(period, i - offset);
  }
  bool regular = offset < period;
  for (int64_t i = 0; i < keys.layers; ++i) regular = regular && attends[i] == (i % period == offset);
  keys.file.fail_if(!regular, "has layers of attention at irregular distances, which is not supported");
  config.update({{"attn_layer_period", period}, {"attn_layer_offset", offset}});
}

// The layers with experts: OFFSET, OFFSET + PERIOD, ...; a period of 0: none.
struct ExpertPeriod {
  int64_t offset = 0, period = 0;
};

ExpertPeriod read_expert_period(const GgufKeys& keys) {
  const auto mixed = [&](int64_t layer) { return keys.has(layer, "ffn_gate_inp.weight"); };
  int64_t first = 0;
  while (first < keys.layers && !mixed(first)) ++first;
  if (first == keys.layers) return {};
  int64_t second = first + 1;
  while (second < keys.layers && !mixed(second)) ++second;
  const int64_t period = second < keys.layers ? second - first : keys.layers;
  for (int64_t i = 0; i < keys.layers; ++i) {
    keys.file.fail_if(mixed(i) != (i % period == first), "has experts in layers ", first, " and ", second,
                      ", but then not at equal distances, which is not supported");
  }
  return {first, period};
}

void read_jamba(GgufKeys& keys, GgufConfig& read) {
  const std::vector<bool> attends = read_gguf_hybrid_heads(keys, read.config);
  read_period(keys, attends, read.config);
  const int64_t recurrent = first_of(attends, false);
  const ExpertPeriod experts = read_expert_period(keys);
  keys.copy(kJambaNames, read.config);
  read.config.update({{"model_type", "jamba"},
                      {"max_position_embeddings", keys.size("context_length", 0)},
                      {"intermediate_size", keys.size("feed_forward_length")},
                      {"num_experts", experts.period > 0 ? keys.size("expert_count") : 1},
                      {"num_experts_per_tok", keys.size("expert_used_count", 1)},
                      {"expert_layer_period", std::max<int64_t>(1, experts.period)},
                      {"expert_layer_offset", experts.offset},
                      {"mamba_expand", keys.times("ssm.inner_size", read.config["hidden_size"].get<int64_t>())},
                      {"mamba_proj_bias", keys.has(recurrent, "ssm_in.bias")},
                      {"mamba_conv_bias", keys.has(recurrent, "ssm_conv1d.bias")}});
}

// Granite's dense models have a shared expert alone, whose size only its tensor has.
void read_granite_feed_forward(GgufKeys& keys, Json& config) {
  const int64_t experts = keys.size("expert_count", 0);
  config["num_local_experts"] = experts;
  if (experts > 0) {
    config["num_experts_per_tok"] = keys.size("expert_used_count");
    config["intermediate_size"] = keys.size("feed_forward_length");
    config["shared_intermediate_size"] = keys.size("expert_shared_feed_forward_length");
    return;
  }
  const GgufTensor* gate = keys.file.find("blk.0.ffn_gate.weight");
  keys.file.fail_if(!gate, "has no tensor \"blk.0.ffn_gate.weight\"");
  config["shared_intermediate_size"] = gate->shape.front();
}

// Granite 4 and Bamba: a Bamba has rotary positions and no multipliers.
void read_granite_hybrid(GgufKeys& keys, GgufConfig& read) {
  Json& config = read.config;
  const std::vector<bool> attends = read_gguf_hybrid_heads(keys, config);
  const int64_t attention = first_of(attends, true), recurrent = first_of(attends, false);
  const int64_t head = read_gguf_head(keys, config);
  const bool rotary = keys.metadata.boolean(keys.key("rope.scaling.finetuned"), true);
  if (rotary) read_gguf_rope(keys, head, read);
  for (const bool attend : attends) config["layer_types"].push_back(attend ? "attention" : "mamba");
  read.layout.groups = keys.size("ssm.group_count");
  read.layout.paired_heads = config["num_attention_heads"];
  read.layout.paired_key_heads = config["num_key_value_heads"];
  keys.copy(kMamba2PartNames, config);
  config.update({{"model_type", "granitemoehybrid"},
                 {"position_embedding_type", rotary ? "rope" : "nope"},
                 {"attention_bias", keys.has(attention, "attn_q.bias")},
                 {"attention_multiplier", keys.factor("attention.scale").value_or(1 / std::sqrt(head))},
                 {"embedding_multiplier", keys.factor("embedding_scale").value_or(1)},
                 {"residual_multiplier", keys.factor("residual_scale").value_or(1)},
                 {"logits_scaling", keys.factor("logit_scale").value_or(1)},
                 {"mamba_expand", keys.times("ssm.inner_size", config["hidden_size"].get<int64_t>())},
                 {"mamba_proj_bias", keys.has(recurrent, "ssm_in.bias")},
                 {"mamba_conv_bias", keys.has(recurrent, "ssm_conv1d.bias")}});
  read_granite_feed_forward(keys, config);
}

void read_experts(GgufKeys& keys, Json& config) {
  const int64_t softmax = keys.size("expert_gating_func", 1);
  keys.file.fail_if(softmax != 1, "has \"", keys.key("expert_gating_func"), "\" ", softmax,
                    ", which is not supported; supported: 1 (softmax)");
  keys.copy(kExpertNames, config);
  config["norm_topk_prob"] = true;  // as llama.cpp, which has no key for it
}

void read_qwen3_moe(GgufKeys& keys, GgufConfig& read) {
  keys.copy(kHeadNames, read.config);
  read.config.update({{"model_type", "qwen3_moe"}, {"attention_bias", keys.has(0, "attn_q.bias")}});
  read_gguf_rope(keys, read_gguf_head(keys, read.config), read);
  read_experts(keys, read.config);
}

// Qwen3-Next and Qwen3.5. The former's files have split maps too, so its config is read as the latter's.
void read_qwen3_5(GgufKeys& keys, GgufConfig& read) {
  Json& config = read.config;
  GgufLayout& layout = read.layout;
  keys.copy(kHeadNames, config);
  config["model_type"] = "qwen3_5_text";
  read_gguf_rope(keys, read_gguf_head(keys, config), read);
  for (const bool linear : keys.recurrent_layers(4))
    config["layer_types"].push_back(linear ? "linear_attention" : "full_attention");
  layout.key_heads = keys.size("ssm.group_count");
  layout.per_key = keys.times("ssm.time_step_rank", layout.key_heads);
  layout.key_dim = keys.size("ssm.state_size");
  layout.value_dim = keys.times("ssm.inner_size", layout.key_heads * layout.per_key);
  layout.one_plus = true;
  layout.feed_forward_norm = "post_attention_norm";
  layout.tiled = keys.architecture != "qwen3next";
  layout.joint_gates = keys.architecture == "qwen3next";
  keys.copy(kDeltaNames, config);
  config["linear_value_head_dim"] = layout.value_dim;
  if (keys.size("expert_count", 0) == 0) {
    config.update({{"num_experts", 0}, {"intermediate_size", keys.size("feed_forward_length")}});
    return;
  }
  read_experts(keys, config);
  config["shared_expert_intermediate_size"] = keys.size("expert_shared_feed_forward_length");
}

void read_lfm2(GgufKeys& keys, GgufConfig& read) {
  Json& config = read.config;
  const std::vector<bool> attends = read_gguf_hybrid_heads(keys, config);
  read_gguf_rope(keys, read_gguf_head(keys, config), read);
  keys.file.fail_if(keys.size("attention.sliding_window", 0) != 0, "has windows, which are not supported here");
  for (const bool attend : attends) config["layer_types"].push_back(attend ? "full_attention" : "conv");
  read.layout.last_norm = "token_embd_norm";
  config.update({{"model_type", "lfm2"},
                 {"intermediate_size", keys.size("feed_forward_length")},
                 {"block_auto_adjust_ff_dim", false},
                 {"conv_L_cache", keys.size("shortconv.l_cache")},
                 {"conv_bias", false}});
}

// The converter has multiplied Falcon-H1's factors into the maps.
void read_falcon_h1(GgufKeys& keys, GgufConfig& read) {
  Json& config = read.config;
  keys.copy(kHeadNames, config);
  keys.copy(kMamba2PartNames, config);
  read_gguf_rope(keys, read_gguf_head(keys, config), read);
  read.layout.groups = keys.size("ssm.group_count");
  read.layout.bare_norm = true;
  config.update({{"model_type", "falcon_h1"},
                 {"intermediate_size", keys.size("feed_forward_length")},
                 {"mamba_d_ssm", keys.size("ssm.inner_size")},
                 {"mamba_rms_norm", keys.has(0, "ssm_norm.weight")},
                 {"mamba_norm_before_gate", false},
                 {"mamba_conv_bias", keys.has(0, "ssm_conv1d.bias")}});
}

// OLMo-3 is an OLMo-2 with windows in some layers. Only the positions of the other layers are stretched.
void read_olmo2(GgufKeys& keys, GgufConfig& read) {
  Json& config = read.config;
  keys.copy(kHeadNames, config);
  read_gguf_rope(keys, read_gguf_head(keys, config), read);
  const int64_t window = keys.size("attention.sliding_window", 0);
  config.update({{"model_type", window > 0 ? "olmo3" : "olmo2"},
                 {"intermediate_size", keys.size("feed_forward_length")},
                 {"attention_bias", keys.has(0, "attn_q.bias")}});
  if (window == 0) return;
  const std::vector<bool> slides = keys.file.flags(keys.key("attention.sliding_window_pattern"));
  keys.file.fail_if(!slides.empty() && std::ssize(slides) < keys.layers, "has \"",
                    keys.key("attention.sliding_window_pattern"), "\" of ", slides.size(), " layers, expected ",
                    keys.layers);
  for (int64_t i = 0; i < keys.layers; ++i) {
    const bool slide = slides.empty() ? (i + 1) % 4 != 0 : slides[i];
    config["layer_types"].push_back(slide ? "sliding_attention" : "full_attention");
  }
  const double theta = config["rope_theta"];
  config.update({{"sliding_window", window},
                 {"rope_local_base_freq", keys.metadata.number(keys.key("rope.freq_base_swa"), 1.0, 1e12, theta)},
                 {"rope_scaling", rope_scaling_json(read.scaling)}});
  read.scaling = {};
}

// What a file does not say is as published: the gate's limit, windows in every other layer, and yarn's bounds, which are
// not rounded to whole channels. (llama.cpp rounds them.)
void read_gpt_oss(GgufKeys& keys, GgufConfig& read) {
  Json& config = read.config;
  keys.copy(kHeadNames, config);
  read_gguf_rope(keys, read_gguf_head(keys, config), read);
  read.scaling.truncate = false;
  read_experts(keys, config);
  read.layout.feed_forward_norm = "post_attention_norm";
  config.update({{"model_type", "gpt_oss"},
                 {"rope_parameters", {{"rope_type", "default"}}},
                 {"intermediate_size", config["moe_intermediate_size"]},
                 {"attention_bias", keys.has(0, "attn_q.bias")},
                 {"sliding_window", keys.size("attention.sliding_window")}});
}

struct GgufArchitecture {
  const char* name;
  void (*read)(GgufKeys& keys, GgufConfig& config);
};
constexpr GgufArchitecture kGgufArchitectures[] = {{"mamba", read_mamba},
                                                   {"mamba2", read_mamba2},
                                                   {"jamba", read_jamba},
                                                   {"granitehybrid", read_granite_hybrid},
                                                   {"qwen3moe", read_qwen3_moe},
                                                   {"qwen3next", read_qwen3_5},
                                                   {"qwen35", read_qwen3_5},
                                                   {"qwen35moe", read_qwen3_5},
                                                   {"lfm2", read_lfm2},
                                                   {"falcon-h1", read_falcon_h1},
                                                   {"nemotron_h", read_gguf_nemotron_h},
                                                   {"nemotron_h_moe", read_gguf_nemotron_h},
                                                   {"kimi-linear", read_gguf_kimi_linear},
                                                   {"minimax-01", read_gguf_minimax},
                                                   {"olmo2", read_olmo2},
                                                   {"rwkv6", read_gguf_rwkv6},
                                                   {"rwkv7", read_gguf_rwkv7},
                                                   {"gpt-oss", read_gpt_oss}};

}  // namespace

int64_t gguf_vocabulary_size(const GgufFile& file) {
  const GgufTensor* embedding = file.find("token_embd.weight");
  file.fail_if(!embedding || embedding->shape.size() != 2, "has no tensor \"token_embd.weight\" of two dimensions");
  return embedding->shape.front();
}

void expect_gguf_heads(const GgufFile& file, int64_t key, int64_t value) {
  file.fail_if(value != key || key < 1, "has keys of ", key, " and values of ", value, " channels; they must be equal");
  file.fail_if(key % 2 != 0, "has heads of ", key, " channels, an odd number");
}

// The heads of hybrids: layers without key heads are recurrent.
std::vector<bool> read_gguf_hybrid_heads(GgufKeys& keys, Json& config) {
  std::vector<bool> attends;
  std::set<int64_t> counts;
  for (const int64_t count : keys.per_layer("attention.head_count_kv")) {
    attends.push_back(count > 0);
    if (count > 0) counts.insert(count);
  }
  keys.file.fail_if(counts.size() != 1, "has ", counts.size(),
                    " different numbers of key heads in its layers of attention, which is not supported");
  config["num_attention_heads"] = keys.size("attention.head_count");
  config["num_key_value_heads"] = *counts.begin();
  return attends;
}

void read_gguf_rope(GgufKeys& keys, int64_t head, GgufConfig& read) {
  const int64_t context = keys.size("context_length", 0);
  const int64_t rotated = keys.size("rope.dimension_count", head);
  const GgufRope rope{keys.file, keys.metadata, keys.architecture, context};
  read.config["max_position_embeddings"] = context;
  read.config["rope_theta"] = rope.theta();
  read.config["partial_rotary_factor"] = static_cast<double>(rotated) / static_cast<double>(head);
  read.scaling = rope.scaling();
}

// The sizes of heads, which must be equal for keys and values.
int64_t read_gguf_head(GgufKeys& keys, Json& config) {
  const int64_t heads = keys.size("attention.head_count"), dim = config["hidden_size"].get<int64_t>();
  const int64_t head = keys.size("attention.key_length", std::max<int64_t>(1, dim / std::max<int64_t>(1, heads)));
  const int64_t value = keys.size("attention.value_length", head);
  expect_gguf_heads(keys.file, head, value);
  config["head_dim"] = head;
  return head;
}

std::string renamed_gguf_architectures() {
  std::string list;
  for (const auto& [name, read] : kGgufArchitectures) list += concat(list.empty() ? "" : ", ", name);
  return list;
}

std::optional<GgufConfig> gguf_config(const GgufFile& file) {
  GgufKeys keys(file);
  for (const auto& [name, read] : kGgufArchitectures) {
    if (keys.architecture != name) continue;
    GgufConfig config{read_sizes(keys)};
    read(keys, config);
    config.blocks = keys.layers;
    return config;
  }
  return std::nullopt;
}

}  // namespace cortado
