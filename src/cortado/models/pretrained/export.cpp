#include <algorithm>
#include <cctype>
#include <cmath>
#include <functional>
#include <map>
#include <tuple>

#include "cortado/base/error.h"
#include "cortado/base/files.h"
#include "cortado/base/signals.h"
#include "cortado/formats/safetensors.h"
#include "cortado/mechanisms/sliding_window/mixer.h"
#include "cortado/mechanisms/softmax/mixer.h"
#include "cortado/models/pretrained/pretrained.h"
#include "cortado/models/pretrained/rope.h"
#include "cortado/nn/dtype.h"
#include "cortado/nn/weights.h"

namespace cortado {
namespace {

void expect(bool fits, const std::string& what) {
  fail_input_if(!fits, "[export] Hugging Face's Llama and its descendants have no ", what);
}

// The layer's attention settings, with its window.
AttentionSettings attention_of(const ModelConfig& config, size_t layer) {
  const Json& mixer = config.layers[layer];
  JsonReader reader(mixer, concat("layers[", layer, "]"));
  const std::string kind = reader.text("mixer");
  fail_input_if(kind != kSoftmax.name && kind != kSlidingWindow.name, "[export] layer ", layer, " is ", kind,
                "; only softmax and sliding_window can be exported");
  AttentionSettings settings = AttentionSettings::read_all(reader, mixer_context(config, static_cast<int64_t>(layer)));
  if (kind == kSlidingWindow.name) settings.window = reader.integer("window", 1, 1 << 30, 129);
  expect(!settings.output_gate, "gates after the attention");
  expect(!settings.sinks && !settings.temperature, "sinks, or queries that grow with their position");
  expect(kind != kSlidingWindow.name || !reader.boolean("aligned", false),
         "windows that begin at multiples of their width");
  expect(settings.taps == 0, "short convolutions of queries, keys and values (\"taps\")");
  expect(!settings.rotary || !settings.rotary->channels, "rotary positions in a part of a head");
  expect(!settings.rotary || settings.rotary->scaling.type != RotaryScaling::Type::kFactors,
         "rotary positions stretched by a list of factors");
  return settings;
}

// Whether two layers differ at most in windows and positions.
bool is_same(const AttentionSettings& a, const AttentionSettings& b) {
  const auto key = [](const AttentionSettings& s) {
    return std::tuple(s.heads, s.kv_heads, s.head_dim, s.bias, s.output_bias, s.softcap, s.scale, s.qk_norm,
                      s.joint_qk_norm);
  };
  return key(a) == key(b);
}

bool any_window(const PretrainedDecoder& decoder) {
  return std::any_of(decoder.windows.begin(), decoder.windows.end(), [](const auto& it) { return it.has_value(); });
}

// The positions of the windows; without windows the model's.
Rotary sliding_rotary(const PretrainedDecoder& decoder) {
  for (int64_t i = 0; i < decoder.layers(); ++i) {
    if (decoder.windows[i]) return *decoder.rotary(i);
  }
  return *decoder.attention.rotary;
}

// Whether the layers that `chosen` accepts have one kind of positions.
template <typename Chosen>
bool one_rotary(const PretrainedDecoder& decoder, const Chosen& chosen) {
  std::optional<std::optional<Rotary>> seen;
  for (int64_t i = 0; i < decoder.layers(); ++i) {
    if (!chosen(i)) continue;
    if (seen && *seen != decoder.rotary(i)) return false;
    seen = decoder.rotary(i);
  }
  return true;
}

const char* gemma_type(const PretrainedDecoder& decoder) {
  const ModelConfig& model = decoder.model;
  const AttentionSettings& attention = decoder.attention;
  expect(model.scaled_embedding && !model.feed_forward.bias && model.feed_forward.activation == Activation::kGeluTanh,
         "GeGLU without embeddings times √D, by another function than tanh, or with biases");
  expect(attention.bias == attention.output_bias, "GeGLU with biases on q, k and v alone");
  expect(std::all_of(decoder.rotaries.begin(), decoder.rotaries.end(), [](const auto& it) { return it.has_value(); }),
         "GeGLU with layers without rotary positions");
  if (attention.qk_norm && model.post_norm) {
    const auto slides = [&](int64_t layer) { return decoder.windows[layer].has_value(); };
    expect(one_rotary(decoder, slides) && one_rotary(decoder, std::not_fn(slides)),
           "rotary positions that differ between windows");
    expect(!any_window(decoder) || sliding_rotary(decoder).scaling.type == RotaryScaling::Type::kNone,
           "windows with stretched rotary positions, with GeGLU");
    expect(!attention.softcap, "caps of scores with norms of queries and keys");
    return "gemma3_text";
  }
  expect(!attention.qk_norm, "norms of queries and keys with GeGLU and without norms after the branches");
  expect(one_rotary(decoder, [](int64_t) { return true; }), "rotary positions that differ between layers, with GeGLU");
  if (model.post_norm) return "gemma2";
  expect(!any_window(decoder) && !attention.softcap && !model.final_softcap && !attention.scale,
         "windows, caps or scales with GeGLU and without norms after the branches");
  return "gemma";
}

// The type of a decoder with norms of queries and keys, layers without positions, or multipliers; nullptr without them.
const char* special_type(const PretrainedDecoder& decoder) {
  const AttentionSettings& attention = decoder.attention;
  const bool norms = attention.qk_norm.has_value();
  const bool multiplies = attention.scale || decoder.model.embedding_scale;
  const bool turns = one_rotary(decoder, [](int64_t) { return true; });
  if (!norms && !multiplies && turns) return nullptr;
  expect(norms + multiplies + !turns == 1,
         "more than one of: norms of queries and keys, scales or multipliers, layers without positions");
  expect(attention.bias == attention.output_bias, "these settings with biases on q, k and v alone");
  if (norms) {
    expect(!decoder.model.feed_forward.bias, "norms of queries and keys with biases in the feed-forward");
    return "qwen3";
  }
  if (multiplies) {
    expect(!any_window(decoder), "scales or multipliers with windows");
    return "granite";
  }
  expect(one_rotary(decoder, [&](int64_t layer) { return decoder.rotary(layer).has_value(); }),
         "rotary positions that differ between layers, without norms of queries and keys");
  return "smollm3";
}

// The model_type that fits, of those that have no other family's special parts.
const char* plain_type(const PretrainedDecoder& decoder) {
  const AttentionSettings& attention = decoder.attention;
  const bool slides = any_window(decoder), wide = attention.width() != decoder.model.dim;
  if (attention.bias && !attention.output_bias && !decoder.model.feed_forward.bias && !wide) return "qwen2";
  if (attention.bias != attention.output_bias) {
    expect(!slides,
           "windows with biases on the output alone; or on q, k and v alone, with heads that are not D/H wide");
    return "seed_oss";
  }
  if (!slides) return "llama";
  expect(!attention.bias && !decoder.model.feed_forward.bias, "windows with biases on the output");
  const auto& windows = decoder.windows;
  expect(std::all_of(windows.begin(), windows.end(), [&](const auto& window) { return window == windows[0]; }),
         "mixture of windows and full attention without Gemma's or Qwen's norms or biases");
  return "mistral";
}

}  // namespace

std::string hugging_face_type(const PretrainedDecoder& decoder) {
  const auto same_norms = [](const auto& it) { return !it.second.pre_norm && !it.second.post_norm; };
  expect(decoder.model.pre_norm && std::ranges::all_of(decoder.model.changes, same_norms),
         "layers without norms before their branches");
  expect(decoder.model.changes.empty(), "layers with a feed-forward of their own");
  expect(!decoder.attention.joint_qk_norm, "norms of queries and keys over all heads together");
  if (decoder.gemma()) return gemma_type(decoder);
  const ModelConfig& model = decoder.model;
  expect(model.feed_forward.kind == FeedForwardKind::kSwiglu, "feed-forward other than SwiGLU and GeGLU");
  expect(!model.scaled_embedding && !model.post_norm,
         "embeddings times √D or norms after the branches without Gemma's GeGLU");
  expect(!decoder.attention.softcap && !model.final_softcap, "caps without Gemma-2's norms");
  expect(decoder.attention.rotary.has_value(), "models without rotary positions");
  const char* special = special_type(decoder);
  return special ? special : plain_type(decoder);
}

namespace {

// Their class, without "ForCausalLM".
std::string class_of(const std::string& type) {
  static const std::map<std::string, std::string> special = {
      {"gemma3_text", "Gemma3"}, {"smollm3", "SmolLM3"}, {"seed_oss", "SeedOss"}};
  const auto found = special.find(type);
  if (found != special.end()) return found->second;
  return static_cast<char>(std::toupper(type[0])) + type.substr(1);
}

// Adds "sliding_window" and "layer_types". All windows must have one size.
void add_windows(Json& json, const PretrainedDecoder& decoder, const std::string& type) {
  std::optional<int64_t> size;
  Json types = Json::array();
  int64_t first = decoder.layers();
  for (int64_t i = 0; i < decoder.layers(); ++i) {
    const auto& window = decoder.windows[i];
    expect(!size || !window || *size == *window, "windows of several sizes");
    if (window) size = window;
    if (window) first = std::min(first, i);
    types.push_back(window ? "sliding_attention" : "full_attention");
  }
  const bool gemma = type == "gemma2" || type == "gemma3_text", qwen = type == "qwen2" || type == "qwen3";
  if (!gemma && !qwen && type != "mistral" && type != "smollm3") return;
  json["sliding_window"] = size ? Json(*size) : Json(nullptr);
  if (type == "mistral") return;
  json["layer_types"] = types;
  if (gemma && !size) json["sliding_window"] = decoder.model.context > 0 ? decoder.model.context : 4096;  // of no layer
  if (!gemma) json["use_sliding_window"] = size.has_value();
  if (qwen) json["max_window_layers"] = first;
}

// Adds rotary positions as transformers 4 wrote them.
void add_rope(Json& json, const PretrainedDecoder& decoder, const std::string& type) {
  Rotary rotary = *decoder.attention.rotary;
  if (type == "gemma3_text") {
    for (int64_t i = 0; i < decoder.layers(); ++i) {
      if (!decoder.windows[i]) rotary = *decoder.rotary(i);
    }
    json["rope_local_base_freq"] = sliding_rotary(decoder).theta;
  }
  json["rope_theta"] = rotary.theta;
  json["rope_scaling"] = rope_scaling_json(rotary.scaling);
  if (type != "smollm3") return;
  for (int64_t i = 0; i < decoder.layers(); ++i) json["no_rope_layers"].push_back(decoder.rotary(i) ? 1 : 0);
}

// Adds the scale and the caps of Gemma-2, or the scale and the logits' cap of Gemma-3.
void add_scores(Json& json, const PretrainedDecoder& decoder) {
  const AttentionSettings& attention = decoder.attention;
  const double scale = attention.scale.value_or(1 / std::sqrt(static_cast<double>(attention.head_dim)));
  const double scalar = 1 / (scale * scale), whole = std::round(scalar);  // an integer in transformers
  json["query_pre_attn_scalar"] =
      std::abs(scalar - whole) < 1e-6 * scalar ? Json(static_cast<int64_t>(whole)) : Json(scalar);
  if (!attention.qk_norm) json["attn_logit_softcapping"] = attention.softcap ? Json(*attention.softcap) : Json(nullptr);
  json["final_logit_softcapping"] = decoder.model.final_softcap ? Json(*decoder.model.final_softcap) : Json(nullptr);
}

Json config_json(const PretrainedDecoder& decoder, at::ScalarType dtype) {
  const ModelConfig& model = decoder.model;
  const AttentionSettings& attention = decoder.attention;
  const std::string type = hugging_face_type(decoder);
  Json json = {{"architectures", {class_of(type) + "ForCausalLM"}},
               {"model_type", type},
               {"vocab_size", model.vocabulary},
               {"hidden_size", model.dim},
               {"intermediate_size", model.feed_forward.dim},
               {"num_hidden_layers", decoder.layers()},
               {"num_attention_heads", attention.heads},
               {"num_key_value_heads", attention.kv_heads},
               {"head_dim", attention.head_dim},
               {"max_position_embeddings", model.context > 0 ? model.context : 2048},
               {"rms_norm_eps", model.norm_eps},
               {"tie_word_embeddings", model.tied},
               {"pad_token_id", nullptr},  // a class's default may be outside the vocabulary
               {"torch_dtype", dtype_name(dtype)}};
  json[decoder.gemma() ? "hidden_activation" : "hidden_act"] = decoder.gemma() ? "gelu_pytorch_tanh" : "silu";
  if (type == "gemma") json["hidden_act"] = "gelu_pytorch_tanh";
  if (type != "qwen2" && type != "mistral") json["attention_bias"] = attention.bias;
  if (type == "seed_oss") json["attention_out_bias"] = attention.output_bias;
  if (!decoder.gemma() && type != "qwen2" && type != "qwen3" && type != "mistral")
    json["mlp_bias"] = model.feed_forward.bias;
  if (type == "granite") {
    const double usual = 1 / std::sqrt(static_cast<double>(attention.head_dim));
    json["attention_multiplier"] = attention.scale.value_or(usual);
    json["embedding_multiplier"] = model.embedding_scale.value_or(1.0);
  }
  if (model.post_norm) add_scores(json, decoder);
  add_rope(json, decoder, type);
  add_windows(json, decoder, type);
  return json;
}

}  // namespace

PretrainedDecoder decoder_of(const ModelConfig& config) {
  expect(config.causal, "bidirectional attention");
  expect(config.norm == NormKind::kRms, "LayerNorm");
  expect(!config.head_bias, "bias of the head");
  expect(!config.embedding_norm, "norm after the embedding");
  expect(!config.normed_residual, "branches that are added to the norms' outputs");
  PretrainedDecoder decoder;
  decoder.model = config;
  AttentionSettings& first = decoder.attention = attention_of(config, 0);
  for (size_t i = 0; i < config.layers.size(); ++i) {
    const AttentionSettings settings = attention_of(config, i);
    expect(is_same(settings, first), "layers whose heads, biases, norms or caps differ");
    if (!first.rotary) first.rotary = settings.rotary;
    decoder.windows.push_back(settings.window);
    decoder.rotaries.push_back(settings.rotary);
  }
  expect(!first.qk_norm || *first.qk_norm == config.norm_eps, "norms of different epsilon");
  hugging_face_type(decoder);  // refuses what no family has
  return decoder;
}

void export_hugging_face(const LanguageModel& model, const std::string& folder, at::ScalarType dtype) {
  const PretrainedDecoder decoder = decoder_of(model.config());
  const Json config = config_json(decoder, dtype);
  const auto weights = named_weights(model);
  TensorFile file{{}, {{"format", "pt"}}};
  visit_weights(decoder, [&](const PretrainedWeight& weight) {
    if (interrupt_requested()) throw Failure("[export] stopped");
    Tensor tensor = weights[weight.name].detach();
    if (decoder.gemma() && weight.is_norm()) tensor = tensor - 1;  // their norms multiply by 1 + w
    file.tensors.emplace_back(weight.hugging_face, tensor.to(dtype));
  });
  write_safetensors(folder + "/model.safetensors", file);
  write_file(folder + "/config.json", config.dump(2) + "\n");
}

}  // namespace cortado
