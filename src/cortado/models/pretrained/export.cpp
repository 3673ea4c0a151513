#include <algorithm>
#include <cctype>
#include <cmath>
#include <tuple>

#include "cortado/base/error.h"
#include "cortado/base/files.h"
#include "cortado/base/signals.h"
#include "cortado/formats/safetensors.h"
#include "cortado/mechanisms/sliding_window/mixer.h"
#include "cortado/mechanisms/softmax/mixer.h"
#include "cortado/models/pretrained/pretrained.h"
#include "cortado/nn/dtype.h"
#include "cortado/nn/weights.h"

namespace cortado {
namespace {

void expect(bool fits, const std::string& what) {
  fail_input_if(!fits, "[export] Hugging Face's Llama, Mistral, Qwen2 and Gemma-2 have no ", what);
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
  expect(!settings.qk_norm && !settings.output_gate, "norms of queries and keys, or gates after the attention");
  expect(settings.taps == 0, "short convolutions of queries, keys and values (\"taps\")");
  expect(settings.rotary && settings.rotary_dim == settings.head_dim,
         "attention without rotary positions in all of a head");
  expect(settings.rotary->scaling.type != RotaryScaling::Type::kFactors,
         "rotary positions stretched by a list of factors");
  return settings;
}

bool is_same(const AttentionSettings& a, const AttentionSettings& b) {
  const auto key = [](const AttentionSettings& s) {
    return std::tuple(s.heads, s.kv_heads, s.head_dim, s.bias, s.output_bias, s.softcap, s.scale, s.rotary->theta,
                      s.rotary->scaling.to_json());
  };
  return key(a) == key(b);
}

const char* class_of(const PretrainedDecoder& decoder) {
  if (decoder.gemma()) return "gemma2";
  expect(!decoder.attention.softcap && !decoder.model.final_softcap && !decoder.attention.scale,
         "caps or scales of scores without Gemma-2's norms");
  const auto& windows = decoder.windows;
  const bool slides =
      std::any_of(windows.begin(), windows.end(), [](const auto& window) { return window.has_value(); });
  if (decoder.attention.bias && !decoder.attention.output_bias) {
    expect(!decoder.model.feed_forward_bias, "biases on q, k, v and the feed-forward alone");
    return "qwen2";
  }
  if (!slides) return "llama";
  expect(!decoder.attention.bias && !decoder.model.feed_forward_bias, "windows with biases on the output");
  expect(std::all_of(windows.begin(), windows.end(), [&](const auto& window) { return window == windows[0]; }),
         "mixture of windows and full attention without Gemma-2's norms or Qwen2's biases");
  return "mistral";
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
  if (type == "llama") return;
  json["sliding_window"] = size ? Json(*size) : Json(nullptr);
  if (type == "mistral") return;
  json["layer_types"] = types;
  if (type == "gemma2" && !size)
    json["sliding_window"] = decoder.model.context > 0 ? decoder.model.context : 4096;  // used by no layer
  if (type == "qwen2") json["use_sliding_window"] = size.has_value();
  if (type == "qwen2") json["max_window_layers"] = first;
}

Json rope_scaling_json(const RotaryScaling& scaling) {
  if (scaling.type == RotaryScaling::Type::kNone) return nullptr;
  if (scaling.type == RotaryScaling::Type::kLinear) return {{"rope_type", "linear"}, {"factor", scaling.factor}};
  return {{"rope_type", "llama3"},
          {"factor", scaling.factor},
          {"low_freq_factor", scaling.low},
          {"high_freq_factor", scaling.high},
          {"original_max_position_embeddings", scaling.original_context}};
}

Json config_json(const PretrainedDecoder& decoder, at::ScalarType dtype) {
  const ModelConfig& model = decoder.model;
  const AttentionSettings& attention = decoder.attention;
  const std::string type = class_of(decoder);
  std::string name = type;
  name[0] = static_cast<char>(std::toupper(name[0]));
  Json json = {{"architectures", {name + "ForCausalLM"}},
               {"model_type", type},
               {"vocab_size", model.vocabulary},
               {"hidden_size", model.dim},
               {"intermediate_size", model.feed_forward_dim},
               {"num_hidden_layers", decoder.layers()},
               {"num_attention_heads", attention.heads},
               {"num_key_value_heads", attention.kv_heads},
               {"head_dim", attention.head_dim},
               {"max_position_embeddings", model.context > 0 ? model.context : 2048},
               {"rms_norm_eps", model.norm_eps},
               {"rope_theta", attention.rotary->theta},
               {"rope_scaling", rope_scaling_json(attention.rotary->scaling)},
               {"tie_word_embeddings", model.tied},
               {"torch_dtype", dtype_name(dtype)}};
  json[decoder.gemma() ? "hidden_activation" : "hidden_act"] = decoder.gemma() ? "gelu_pytorch_tanh" : "silu";
  if (type == "llama") json["mlp_bias"] = model.feed_forward_bias;
  if (type == "llama" || type == "gemma2") json["attention_bias"] = attention.bias;
  if (type == "qwen2") expect(attention.head_dim * attention.heads == model.dim, "Qwen2 whose heads are not D/H wide");
  if (decoder.gemma()) {
    const double scale = attention.scale.value_or(1 / std::sqrt(static_cast<double>(attention.head_dim)));
    const double scalar = 1 / (scale * scale), whole = std::round(scalar);  // an integer in transformers
    json["query_pre_attn_scalar"] =
        std::abs(scalar - whole) < 1e-6 * scalar ? Json(static_cast<int64_t>(whole)) : Json(scalar);
    json["attn_logit_softcapping"] = attention.softcap ? Json(*attention.softcap) : Json(nullptr);
    json["final_logit_softcapping"] = model.final_softcap ? Json(*model.final_softcap) : Json(nullptr);
  }
  add_windows(json, decoder, type);
  return json;
}

}  // namespace

PretrainedDecoder decoder_of(const ModelConfig& config) {
  expect(config.causal, "bidirectional attention");
  expect(config.norm == NormKind::kRms, "LayerNorm");
  expect(!config.head_bias, "bias of the head");
  expect(!config.embedding_norm && !config.embedding_scale, "a norm after the embedding, or a scale other than √D");
  PretrainedDecoder decoder;
  decoder.model = config;
  if (decoder.gemma()) {
    expect(config.feed_forward == FeedForwardKind::kGeglu && config.scaled_embedding && !config.feed_forward_bias &&
               config.feed_forward_activation == Activation::kGeluTanh,
           "norms after the branches without GeGLU (by tanh) and embeddings times √D");
  } else {
    expect(config.feed_forward == FeedForwardKind::kSwiglu && !config.scaled_embedding,
           "a feed-forward other than SwiGLU, or scaled embeddings, without norms after the branches");
  }
  const AttentionSettings& first = decoder.attention = attention_of(config, 0);
  for (size_t i = 0; i < config.layers.size(); ++i) {
    const AttentionSettings settings = attention_of(config, i);
    expect(is_same(settings, first), "layers whose heads, biases, caps or positions differ");
    decoder.windows.push_back(settings.window);
  }
  expect(first.bias || !first.output_bias, "bias on the output alone");
  expect(!decoder.gemma() || first.bias == first.output_bias, "Gemma-2 with biases on q, k and v alone");
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
