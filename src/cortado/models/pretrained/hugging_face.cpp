#include <algorithm>
#include <filesystem>

#include "cortado/base/error.h"
#include "cortado/models/pretrained/decoders.h"
#include "cortado/models/pretrained/folder.h"
#include "cortado/models/pretrained/quantised.h"

namespace cortado {

void read_windows(JsonReader& config, PretrainedDecoder& decoder, std::optional<int64_t> window,
                  const std::function<bool(int64_t)>& is_sliding) {
  const int64_t layers = config.integer("num_hidden_layers", 1, 10000);
  const Json types = config.any("layer_types");
  config.fail_if(!types.is_null() && (!types.is_array() || static_cast<int64_t>(types.size()) != layers),
                 "\"layer_types\" must name the types of ", layers, " layers");
  for (int64_t i = 0; i < layers; ++i) {
    bool sliding = is_sliding(i);
    if (types.is_array()) {
      sliding = types[i] == "sliding_attention";
      config.fail_if(!sliding && types[i] != "full_attention", "layer type ", types[i].dump(),
                     " is not supported; supported: full_attention, sliding_attention");
      if (sliding && !window) config.fail("a layer slides, and \"sliding_window\" is not given");
    }
    decoder.windows.push_back(sliding ? window : std::nullopt);
  }
}

void read_decoder_sizes(JsonReader& config, PretrainedDecoder& decoder, const DecoderDefaults& defaults) {
  ModelConfig& model = decoder.model;
  AttentionSettings& attention = decoder.attention;
  model.vocabulary = config.integer("vocab_size", 1, int64_t{1} << 31, defaults.vocabulary);
  model.dim = config.integer("hidden_size", 1, 1 << 20);
  attention.heads = config.integer("num_attention_heads", 1, 65536, defaults.heads);
  // null: as many as heads; absent: the class's default.
  const bool said = config.says("num_key_value_heads");
  attention.kv_heads = config.integer("num_key_value_heads", 1, 65536,
                                      said ? attention.heads : defaults.kv_heads.value_or(attention.heads));
  config.fail_if(!config.has("head_dim") && !defaults.head_dim && model.dim % attention.heads != 0, "hidden_size (",
                 model.dim, ") is not divisible by num_attention_heads (", attention.heads, ")");
  const int64_t head_dim = std::max<int64_t>(1, model.dim / attention.heads);
  attention.head_dim = config.integer("head_dim", 1, 65536, defaults.head_dim.value_or(head_dim));
  model.feed_forward.dim = config.integer("intermediate_size", 1, 1 << 20);
  model.context = config.integer("max_position_embeddings", 0, int64_t{1} << 40, 0);
  model.norm_eps = config.number("rms_norm_eps", 0.0, 1.0, defaults.norm_eps);
  model.tied = config.boolean("tie_word_embeddings", defaults.tied);
}

void read_attention_bias(JsonReader& config, PretrainedDecoder& decoder) {
  decoder.attention.bias = decoder.attention.output_bias = config.boolean("attention_bias", false);
}

void expect_activation(JsonReader& config, const std::string& wanted) {
  const std::string fallback = config.text("hidden_act", wanted);
  const std::string activation = config.text("hidden_activation", fallback);
  // Gemma's first files say "gelu" and mean the tanh approximation.
  const bool early = wanted == "gelu_pytorch_tanh" && !config.has("hidden_activation");
  config.fail_if(activation != wanted && !(early && activation == "gelu"), "activation \"", activation,
                 "\" is not supported; supported: ", wanted);
}

namespace {

const std::vector<DecoderFamily>& decoder_families() {
  static const std::vector<DecoderFamily> all = [] {
    std::vector<DecoderFamily> list;
    for (const auto& families : {llama_families, gemma_families, phi3_families}) {
      for (DecoderFamily& family : families()) list.push_back(std::move(family));
    }
    return list;
  }();
  return all;
}

const DecoderFamily& family_of(JsonReader& config) {
  const std::string type = config.text("model_type", "none");
  std::string known;
  for (const DecoderFamily& family : decoder_families()) {
    if (family.type == type) return family;
    known += family.type + ", ";
  }
  config.fail("models of type \"", type, "\" are not supported; supported: ", known, "gemma3, mistral3, ",
              renamed_types());
}

// Models that also read images: the text part's config is in "text_config".
bool has_images(JsonReader& config) {
  const std::string type = config.text("model_type", "none");
  return type == "gemma3" || type == "mistral3";
}

JsonReader text_config(JsonReader& config) {
  Json text = config.object("text_config");
  if (config.says("tie_word_embeddings")) text["tie_word_embeddings"] = config.any("tie_word_embeddings");
  return {text, config.place() + ".text_config"};
}

// Keeps the text part's tensors, by the names that a model of text has. Returns what is left out: "vision_tower. (12
// tensors)".
std::string keep_text(std::map<std::string, Tensor>& tensors) {
  static const std::vector<std::pair<std::string, std::string>> kNames = {{"model.language_model.", "model."},
                                                                          {"language_model.model.", "model."},
                                                                          {"language_model.lm_head.", "lm_head."}};
  std::map<std::string, Tensor> text;
  std::map<std::string, int64_t> others;
  for (const auto& [name, tensor] : tensors) {
    const auto part = std::ranges::find_if(kNames, [&](const auto& it) { return name.starts_with(it.first); });
    if (part != kNames.end()) {
      text[part->second + name.substr(part->first.size())] = tensor;
    } else if (name.starts_with("lm_head.")) {
      text[name] = tensor;
    } else {
      const std::string inside = name.starts_with("model.") ? name.substr(6) : name;
      ++others[inside.substr(0, inside.find('.') + 1)];
    }
  }
  tensors = std::move(text);
  std::string list;
  for (const auto& [part, count] : others) list += concat(list.empty() ? "" : ", ", part, " (", count, " tensors)");
  return list;
}

}  // namespace

PretrainedSource open_hugging_face(const std::string& folder) {
  const std::string path = folder + "/config.json";
  JsonReader whole(folder_config(folder), path);
  const bool images = has_images(whole);
  JsonReader config = images ? text_config(whole) : whole;
  const DecoderFamily& family = family_of(config);
  BlockScales blocks = read_quantisation(whole);
  PretrainedDecoder decoder;
  decoder.source = path;
  decoder.model.name = std::filesystem::path(folder + "/.").lexically_normal().parent_path().filename().string();
  family.read(config, decoder);
  PretrainedSource source{decoder, &PretrainedWeight::hugging_face};
  auto tensors = folder_tensors(folder);
  if (images) {
    source.left_out = keep_text(tensors);
    source.decoder.model.tied |= !tensors.contains("lm_head.weight");  // the class's default, which configs leave out
  }
  blocks.take(tensors, folder);
  if (family.rename) {
    for (auto& [name, tensor] : tensors) tensor = blocks.decode(name, tensor);
    blocks.scales.clear();
    family.rename(decoder, tensors);
  }
  for (const auto& [name, tensor] : tensors) source.shapes[name] = tensor.sizes().vec();
  source.read = [=](const PretrainedWeight& weight) -> Tensor {
    const Tensor tensor = blocks.decode(weight.hugging_face, tensors.at(weight.hugging_face));
    fail_input_if(!at::isFloatingType(tensor.scalar_type()), "[import] ", folder, ": \"", weight.hugging_face,
                  "\" is of type ", c10::toString(tensor.scalar_type()), ", expected float32, float16 or bfloat16");
    // Gemma's norms multiply by 1 + w. The sum is kept in float32, because 16 bits would round it.
    return decoder.gemma() && weight.is_norm() ? tensor.to(at::kFloat) + 1 : tensor;
  };
  // Tables of old Llamas, and a tied head that is stored anyway.
  source.is_idle = [tied = source.decoder.model.tied](const std::string& name) {
    return name.ends_with(".rotary_emb.inv_freq") || (tied && name == "lm_head.weight");
  };
  return source;
}

}  // namespace cortado
