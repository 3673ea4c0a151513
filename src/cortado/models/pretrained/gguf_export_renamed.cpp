// GGUF files of the models that renamed.h reads. One of our models is described as a folder's config; the reader of
// such folders must then give the model back, and the tensors are those of its weights, moved the other way.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <span>

#include "cortado/base/error.h"
#include "cortado/models/pretrained/gguf_export.h"
#include "cortado/models/pretrained/gguf_names.h"
#include "cortado/models/pretrained/gguf_renamed.h"

namespace cortado {
namespace {

void expect_in_linear(bool fits, const std::string& what) { fail_input_if(!fits, "[export] llama.cpp has no ", what); }

// A folder's config of one of our models, and the file's metadata.
struct RenamedFile {
  const ModelConfig& ours;
  GgufModel file;
  Json config = {};
  GgufLayout layout = {};

  void put(std::span<const GgufName> names) {
    for (const auto& [key, theirs] : names) file.put_whole(key, config.at(theirs).get<int64_t>());
  }
};

// The first layer with this mixer.
const Json& layer_of(const ModelConfig& config, const std::string& mixer) {
  return *std::ranges::find_if(config.layers, [&](const Json& layer) { return layer["mixer"] == mixer; });
}

int64_t whole(const Json& mixer, const char* key, int64_t usual) { return mixer.value(key, usual); }

std::vector<int32_t> per_layer(const ModelConfig& config, int64_t attention, int64_t others) {
  std::vector<int32_t> list;
  for (const Json& layer : config.layers)
    list.push_back(static_cast<int32_t>(layer["mixer"] == "softmax" ? attention : others));
  return list;
}

// Granite's blocks are multiplied by a factor, which is in our norms' epsilon (mamba_hybrids.cpp). That of Mamba-2's own
// norms tells the factor.
double own_epsilon(const ModelConfig& ours, const std::string& architecture) {
  return architecture == "granitehybrid" ? layer_of(ours, "mamba2").value("norm_eps", 1e-5) : ours.norm_eps;
}

// What all files say.
void put_shared(RenamedFile& made) {
  const ModelConfig& ours = made.ours;
  const double norm_eps = own_epsilon(ours, made.file.architecture);
  made.config.update({{"vocab_size", ours.vocabulary},
                      {"hidden_size", ours.dim},
                      {"num_hidden_layers", ours.layers.size()},
                      {"tie_word_embeddings", ours.tied},
                      {"rms_norm_eps", norm_eps},
                      {"layer_norm_epsilon", norm_eps},
                      {"max_position_embeddings", ours.context}});
  made.file.put_whole("vocab_size", ours.vocabulary);
  made.file.put_whole("context_length", ours.context > 0 ? ours.context : kUnknownContext);
  made.file.put_whole("embedding_length", ours.dim);
  made.file.put_whole("block_count", static_cast<int64_t>(ours.layers.size()));
  made.file.put_number("attention.layer_norm_rms_epsilon", norm_eps);
}

void put_mixer_only(RenamedFile& made) {
  expect_in_linear(made.ours.feed_forward.kind == FeedForwardKind::kNone, "feed-forward in layers of Mamba alone");
  made.file.put_whole("feed_forward_length", 0);
  made.file.put_whole("attention.head_count", 0);
}

void describe_mamba(RenamedFile& made) {
  const Json& mixer = made.ours.layers[0];
  const int64_t expand = whole(mixer, "expand", 2);
  const bool normed = mixer.value("select_norm", false), bias = mixer.value("bias", false);
  expect_in_linear(expand == 2 && !bias && mixer.value("conv_bias", true),
                   "mamba layers with another \"expand\" than 2, with \"bias\" or without \"conv_bias\"");
  made.config.update({{"model_type", normed ? "falcon_mamba" : "mamba"},
                      {"intermediate_size", expand * made.ours.dim},
                      {"state_size", whole(mixer, "state", 16)},
                      {"conv_kernel", whole(mixer, "taps", 4)},
                      {"time_step_rank", whole(mixer, "step_rank", (made.ours.dim + 15) / 16)},
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
  expect_in_linear(!bias && mixer.value("conv_bias", true), "mamba2 layers with \"bias\" or without \"conv_bias\"");
  made.layout.groups = whole(mixer, "groups", 1);
  made.config.update({{"model_type", "mamba2"},
                      {"expand", whole(mixer, "expand", 2)},
                      {"num_heads", whole(mixer, "heads", made.ours.heads)},
                      {"n_groups", made.layout.groups},
                      {"state_size", whole(mixer, "state", 128)},
                      {"conv_kernel", whole(mixer, "taps", 4)},
                      {"use_bias", bias},
                      {"use_conv_bias", true}});
  put_mixer_only(made);
  made.put(kMamba2Names);
  made.file.put_whole("ssm.inner_size", whole(mixer, "expand", 2) * made.ours.dim);
}

// The attention of hybrids.
void put_attention(RenamedFile& made) {
  const Json& mixer = layer_of(made.ours, "softmax");
  const int64_t heads = whole(mixer, "heads", made.ours.heads), keys = whole(mixer, "kv_heads", heads);
  const int64_t head = whole(mixer, "head_dim", std::max<int64_t>(1, made.ours.dim / heads));
  made.config.update({{"num_attention_heads", heads}, {"num_key_value_heads", keys}, {"head_dim", head}});
  made.file.put_whole("attention.key_length", head);
  made.file.put_whole("attention.value_length", head);
}

void expect_whole_width(const RenamedFile& made) {
  const int64_t width =
      made.config.at("num_attention_heads").get<int64_t>() * made.config.at("head_dim").get<int64_t>();
  expect_in_linear(width == made.ours.dim, concat("attention in ", made.file.architecture, " whose heads together are ",
                                                  width, " channels wide, not ", made.ours.dim));
}

void put_rope_of(RenamedFile& made) {
  const ModelConfig& ours = made.ours;
  expect_in_linear(ours.rope_scaling.type == RotaryScaling::Type::kNone, "stretched positions in hybrids");
  const double fraction = layer_of(ours, "softmax").value("rotary_fraction", 1.0);
  made.config.update({{"rope_theta", ours.rope_theta}, {"partial_rotary_factor", fraction}});
  made.file.put_number("rope.freq_base", ours.rope_theta);
  made.file.put_whole("rope.dimension_count", static_cast<int64_t>(fraction * made.config["head_dim"].get<double>()));
}

// The layers of hybrids without key heads are recurrent.
void put_hybrid_heads(RenamedFile& made) {
  made.file.put_whole("attention.head_count", made.config["num_attention_heads"].get<int64_t>());
  made.file.put("attention.head_count_kv", per_layer(made.ours, made.config["num_key_value_heads"].get<int64_t>(), 0));
}

void describe_jamba(RenamedFile& made) {
  const Json& mixer = layer_of(made.ours, "mamba");
  const ModelConfig& ours = made.ours;
  expect_in_linear(whole(mixer, "expand", 2) == 2 && !mixer.value("bias", false) && mixer.value("conv_bias", true),
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
  expect_in_linear(attends[0] < period, "layers of attention at irregular distances");
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
                      {"mamba_dt_rank", whole(mixer, "step_rank", (ours.dim + 15) / 16)},
                      {"mamba_d_state", whole(mixer, "state", 16)},
                      {"mamba_d_conv", whole(mixer, "taps", 4)},
                      {"mamba_proj_bias", false},
                      {"mamba_conv_bias", true}});
  made.put(kJambaNames);
  made.file.put_whole("ssm.inner_size", 2 * ours.dim);
  made.file.put_whole("feed_forward_length", ours.feed_forward.dim);
  if (!mixed) return;
  made.file.put_whole("expert_count", ours.feed_forward.experts.count);
  made.file.put_whole("expert_used_count", ours.feed_forward.experts.per_token);
}

void describe_lfm2(RenamedFile& made) {
  const ModelConfig& ours = made.ours;
  const Json& mixer = layer_of(ours, "gated_short_conv");
  const int64_t taps = whole(mixer, "taps", 3);
  put_attention(made);
  expect_whole_width(made);
  put_hybrid_heads(made);
  put_rope_of(made);
  for (const Json& layer : ours.layers)
    made.config["layer_types"].push_back(layer["mixer"] == "softmax" ? "full_attention" : "conv");
  made.layout.last_norm = "token_embd_norm";
  made.config.update({{"model_type", "lfm2"},
                      {"norm_eps", ours.norm_eps},
                      {"intermediate_size", ours.feed_forward.dim},
                      {"block_auto_adjust_ff_dim", false},
                      {"conv_L_cache", taps},
                      {"conv_bias", false}});
  made.file.put_whole("shortconv.l_cache", taps);
  made.file.put_whole("feed_forward_length", ours.feed_forward.dim);
}

void describe_olmo2(RenamedFile& made) {
  const Json& mixer = layer_of(made.ours, "softmax");
  expect_in_linear(mixer.value("qk_norm_type", "per_head") == "per_layer" && !mixer.value("bias", false),
                   "architecture with such softmax layers, norms and feed-forwards");
  expect_in_linear(!made.ours.tied, "head of olmo2 that is the embedding");
  put_attention(made);
  expect_whole_width(made);
  put_rope_of(made);
  made.put(kHeadNames);
  made.config.update({{"model_type", "olmo2"}, {"intermediate_size", made.ours.feed_forward.dim}});
  made.file.put_whole("feed_forward_length", made.ours.feed_forward.dim);
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

void describe_granite_hybrid(RenamedFile& made) {
  const Json& mixer = layer_of(made.ours, "mamba2");
  expect_in_linear(whole(mixer, "expand", 2) == 2 && !mixer.value("bias", false) && mixer.value("conv_bias", true),
                   "mamba2 layers with another \"expand\" than 2, with \"bias\" or without \"conv_bias\" in hybrids");
  put_attention(made);
  put_hybrid_heads(made);
  const bool rotary = made.ours.positions == PositionKind::kRotary;
  // llama.cpp's converter orders the rows of whole heads as pairs, although it then turns the first ones only.
  expect_in_linear(!rotary || layer_of(made.ours, "softmax").value("rotary_fraction", 1.0) == 1.0,
                   "rotary positions on a part of each head in granitehybrid");
  if (rotary) put_rope_of(made);
  if (!rotary) made.file.put_whole("rope.dimension_count", made.config["head_dim"].get<int64_t>());
  made.file.put("rope.scaling.finetuned", rotary);
  for (const Json& layer : made.ours.layers)
    made.config["layer_types"].push_back(layer["mixer"] == "softmax" ? "attention" : "mamba");
  made.layout.groups = whole(mixer, "groups", 1);
  made.layout.paired_heads = made.config["num_attention_heads"];
  made.layout.paired_key_heads = made.config["num_key_value_heads"];
  made.config.update({{"model_type", "granitemoehybrid"},
                      {"position_embedding_type", rotary ? "rope" : "nope"},
                      {"attention_bias", layer_of(made.ours, "softmax").value("bias", false)},
                      {"mamba_expand", 2},
                      {"mamba_n_heads", whole(mixer, "heads", made.ours.heads)},
                      {"mamba_n_groups", made.layout.groups},
                      {"mamba_d_state", whole(mixer, "state", 128)},
                      {"mamba_d_conv", whole(mixer, "taps", 4)},
                      {"mamba_proj_bias", false},
                      {"mamba_conv_bias", true}});
  put_granite_multipliers(made);
  put_granite_feed_forward(made);
  made.put(kMamba2PartNames);
  made.file.put_whole("ssm.inner_size", 2 * made.ours.dim);
}

void put_qwen_experts(RenamedFile& made) {
  const ModelConfig& ours = made.ours;
  made.config.update({{"num_experts", ours.feed_forward.experts.count},
                      {"num_experts_per_tok", ours.feed_forward.experts.per_token},
                      {"moe_intermediate_size", ours.feed_forward.dim},
                      {"norm_topk_prob", true}});
  made.put(kExpertNames);
}

void describe_qwen3_moe(RenamedFile& made) {
  put_attention(made);
  put_rope_of(made);
  made.config.update({{"model_type", "qwen3_moe"}, {"attention_bias", made.ours.layers[0].value("bias", false)}});
  expect_in_linear(!made.config["attention_bias"].get<bool>(), "biases in the attention of qwen3moe");
  made.put(kHeadNames);
  put_qwen_experts(made);
  made.file.put_whole("feed_forward_length", made.ours.feed_forward.dim);
}

// llama.cpp's files of Qwen3.5 have text, height and width turn parts of a head, which are equal for text.
void put_sections(RenamedFile& made) {
  const double turned = layer_of(made.ours, "softmax").value("rotary_fraction", 1.0);
  const auto pairs = static_cast<int32_t>(turned * made.config["head_dim"].get<double>() / 2);
  made.file.put("rope.dimension_sections", std::vector<int32_t>{(pairs + 2) / 3, (pairs + 1) / 3, pairs / 3, 0});
}

void describe_qwen3_5(RenamedFile& made) {
  const ModelConfig& ours = made.ours;
  const Json& mixer = layer_of(ours, "gated_delta_net");
  const int64_t heads = whole(mixer, "heads", ours.heads), keys = whole(mixer, "key_heads", heads);
  const int64_t head = whole(mixer, "head_dim", 0), value = whole(mixer, "value_head_dim", 0);
  expect_in_linear(head > 0 && head == value, "Gated DeltaNet whose heads of keys and values differ in size");
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
                      {"linear_conv_kernel_dim", whole(mixer, "taps", 4)}});
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

// An architecture that is written, by the kinds of its layers. `experts`: with or without; nullopt: both.
struct WrittenArchitecture {
  const char* name;
  std::set<std::string> mixers;
  std::optional<bool> experts;
  void (*describe)(RenamedFile& made);
};

const std::vector<WrittenArchitecture>& written_architectures() {
  static const std::vector<WrittenArchitecture> all = {
      {"mamba", {"mamba"}, false, describe_mamba},
      {"mamba2", {"mamba2"}, false, describe_mamba2},
      {"jamba", {"mamba", "softmax"}, {}, describe_jamba},
      {"lfm2", {"gated_short_conv", "softmax"}, false, describe_lfm2},
      {"granitehybrid", {"mamba2", "softmax"}, {}, describe_granite_hybrid},
      {"olmo2", {"softmax"}, false, describe_olmo2},
      {"qwen3moe", {"softmax"}, true, describe_qwen3_moe},
      {"qwen35", {"gated_delta_net", "softmax"}, false, describe_qwen3_5},
      {"qwen35moe", {"gated_delta_net", "softmax"}, true, describe_qwen3_5}};
  return all;
}

const WrittenArchitecture& architecture_for(const ModelConfig& config) {
  std::set<std::string> mixers, known;
  for (const Json& layer : config.layers) mixers.insert(layer["mixer"].get<std::string>());
  const bool experts = config.feed_forward.kind == FeedForwardKind::kExperts;
  for (const WrittenArchitecture& it : written_architectures()) {
    if (it.mixers == mixers && it.experts.value_or(experts) == experts) return it;
    known.insert(it.mixers.begin(), it.mixers.end());
  }
  std::string list;
  for (const std::string& mixer : mixers) {
    expect_in_linear(known.contains(mixer), concat("architecture with layers of ", mixer));
    list += concat(list.empty() ? "" : " and ", mixer);
  }
  expect_in_linear(false, concat("model with layers of ", list, experts ? " and experts" : ""));
  return written_architectures().front();
}

// Whether two settings are equal, numbers up to the rounding of a file's.
bool is_equal(const Json& a, const Json& b) {
  if (!a.is_number() || !b.is_number()) return a == b;
  return std::abs(a.get<double>() - b.get<double>()) <= 1e-6 * std::abs(a.get<double>());
}

// Whether two objects are equal, and all objects in them.
bool is_equal_object(const Json& a, const Json& b) {
  if (!a.is_object() || !b.is_object() || a.size() != b.size()) return is_equal(a, b);
  return std::ranges::all_of(
      a.items(), [&](const auto& it) { return b.contains(it.key()) && is_equal_object(it.value(), b[it.key()]); });
}

// The epsilon of the norms in a mixer that does not say it.
double usual_epsilon(const Json& layer) {
  return layer["mixer"] == "mamba2" || layer["mixer"] == "gated_delta_net" ? 1e-5 : 1e-6;
}

// Throws InputError unless what the file says is our model.
void expect_same(const ModelConfig& ours, const ModelConfig& file, const std::string& architecture) {
  const auto refuse = [&](const std::string& key, const Json& value) {
    fail_input_if(true, "[export] llama.cpp's ", architecture, " has no \"", key, "\": ", value.dump());
  };
  Json wanted = ours.to_json(), found = file.to_json();
  for (const char* key :
       {"name", "context", "dropout", "initialization", "task", "training", "heads", "layers", "mixer"}) {
    wanted.erase(key);
    found.erase(key);
  }
  for (const auto& [key, value] : wanted.items()) {
    if (!found.contains(key) || !is_equal_object(value, found[key])) refuse(key, value);
  }
  if (ours.changes != file.changes) refuse("layers", "norms or feed-forwards that differ");
  for (size_t i = 0; i < ours.layers.size(); ++i) {
    for (const auto& [key, value] : ours.layers[i].items()) {
      if (!file.layers[i].contains(key) || !is_equal(value, file.layers[i][key])) refuse(key, value);
    }
    for (const auto& [key, value] : file.layers[i].items()) {
      if (ours.layers[i].contains(key)) continue;
      if (value == true && key != "conv_bias") refuse(key, false);
      if (key == "norm_eps" && !is_equal(value, usual_epsilon(ours.layers[i])))
        refuse(key, usual_epsilon(ours.layers[i]));
    }
  }
}

struct Part {
  std::string ours;
  TheirTensor form;
};

// Moves our weights to where a file's tensor has them. What `change` does to the numbers of places says where.
Tensor assemble(const std::vector<int64_t>& shape, const std::vector<Part>& parts, const ModelWeights& weights) {
  Tensor whole = at::empty(shape, at::kFloat);
  for (const auto& [name, form] : parts) {
    const Tensor ours = form.value ? form.value->theirs(weights[name]) : weights[name].to(at::kFloat);
    const Tensor target = form.index ? whole.select(0, *form.index) : whole;
    if (!form.change) {
      target.copy_(ours);
      continue;
    }
    const Tensor places = form.change(at::arange(target.numel(), at::kLong).reshape(target.sizes()));
    target.view(-1).index_put_({places.reshape(-1)}, ours.reshape(-1));
  }
  return whole;
}

// FalconMamba's norms of what it selects have no weights, which ours must not have learned.
bool is_unit_norm(const Part& part) {
  return part.form.name.ends_with("ssm_x.weight") && part.ours.ends_with("norm.weight");
}

void add_weights(const RenamedWeights& list, GgufModel& file) {
  std::vector<std::string> order;
  std::map<std::string, std::vector<Part>> tensors;
  for (const RenamedWeight& weight : list.list) {
    const TheirTensor& form = weight.forms.front();
    if (!tensors.contains(form.name)) order.push_back(form.name);
    tensors[form.name].push_back({weight.ours, form});
  }
  for (const std::string& name : order) {
    std::vector<Part> parts = tensors[name], units;
    std::ranges::copy_if(parts, std::back_inserter(units), is_unit_norm);
    std::erase_if(parts, is_unit_norm);
    const Shape shape = parts.front().form.shape;
    file.tensors.push_back({name, shape, [=](const ModelWeights& weights) {
                              for (const Part& unit : units)
                                expect_in_linear(
                                    (weights[unit.ours] == 1).all().item<bool>(),
                                    concat("weights of norms in mamba layers, but ", unit.ours, " learned"));
                              return assemble(shape, parts, weights);
                            }});
  }
}

}  // namespace

GgufModel gguf_renamed_model(const ModelConfig& config) {
  const WrittenArchitecture& architecture = architecture_for(config);
  RenamedFile made{config, {architecture.name}};
  put_shared(made);
  architecture.describe(made);
  JsonReader reader(made.config, concat("llama.cpp's ", architecture.name));
  RenamedModel folder = read_architecture(reader).value();
  expect_same(config, folder.config, architecture.name);
  add_weights(gguf_weights(folder, made.layout), made.file);
  return std::move(made.file);
}

}  // namespace cortado
