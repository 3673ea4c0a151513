#include <filesystem>

#include "cortado/base/error.h"
#include "cortado/models/pretrained/folder.h"
#include "cortado/models/pretrained/pretrained.h"
#include "cortado/models/pretrained/rope.h"

namespace cortado {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMost = int64_t{1} << 40;

// Reads "layer_types" of transformers 5, or asks `is_sliding` for each layer's number.
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

void read_sizes(JsonReader& config, PretrainedDecoder& decoder) {
  ModelConfig& model = decoder.model;
  AttentionSettings& attention = decoder.attention;
  model.vocabulary = config.integer("vocab_size", 1, int64_t{1} << 31);
  model.dim = config.integer("hidden_size", 1, 1 << 20);
  attention.heads = config.integer("num_attention_heads", 1, 65536);
  attention.kv_heads = config.integer("num_key_value_heads", 1, 65536, attention.heads);
  config.fail_if(!config.has("head_dim") && !decoder.gemma() && model.dim % attention.heads != 0, "hidden_size (",
                 model.dim, ") is not divisible by num_attention_heads (", attention.heads, ")");
  const int64_t head_dim = decoder.gemma() ? 256 : std::max<int64_t>(1, model.dim / attention.heads);
  attention.head_dim = config.integer("head_dim", 1, 65536, head_dim);
  model.feed_forward_dim = config.integer("intermediate_size", 1, 1 << 20);
  model.context = config.integer("max_position_embeddings", 0, kMost, 0);
  model.norm_eps = config.number("rms_norm_eps", 0.0, 1.0, 1e-6);
  const PretrainedRope rope = read_rope(config);
  config.fail_if(rope.fraction != 1.0, "rotary positions on a part of each head are not supported");
  attention.rotary = Rotary{rope.theta, rope.scaling};
  model.tied = config.boolean("tie_word_embeddings", decoder.gemma());
}

void expect_activation(JsonReader& config, const std::string& wanted) {
  const std::string fallback = config.text("hidden_act", wanted);
  const std::string activation = config.text("hidden_activation", fallback);
  // Gemma's first files say "gelu" and mean the tanh approximation.
  const bool early = wanted == "gelu_pytorch_tanh" && !config.has("hidden_activation");
  config.fail_if(activation != wanted && !(early && activation == "gelu"), "activation \"", activation,
                 "\" is not supported; supported: ", wanted);
}

void read_gemma(JsonReader& config, PretrainedDecoder& decoder) {
  decoder.model.post_norm = true;
  expect_activation(config, "gelu_pytorch_tanh");
  read_sizes(config, decoder);
  AttentionSettings& attention = decoder.attention;
  attention.bias = attention.output_bias = config.boolean("attention_bias", false);
  const double scalar = config.number("query_pre_attn_scalar", 1e-6, 1e9, 256.0);
  if (scalar != static_cast<double>(attention.head_dim)) attention.scale = 1 / std::sqrt(scalar);
  // null: no cap; absent: the class's default.
  const auto cap = [&](const char* key, double usual) {
    return config.says(key) ? config.optional_number(key, 1e-3, 1e6) : std::optional<double>(usual);
  };
  attention.softcap = cap("attn_logit_softcapping", 50.0);
  decoder.model.final_softcap = cap("final_logit_softcapping", 30.0);
  if (config.boolean("use_bidirectional_attention", false)) config.fail("bidirectional attention is not supported");
  read_windows(config, decoder, config.integer("sliding_window", 1, 1 << 30, 4096),
               [](int64_t layer) { return layer % 2 == 0; });
}

void read_llama(JsonReader& config, const std::string& type, PretrainedDecoder& decoder) {
  expect_activation(config, "silu");
  read_sizes(config, decoder);
  const bool qwen = type == "qwen2";
  decoder.attention.bias = qwen || config.boolean("attention_bias", false);
  decoder.attention.output_bias = !qwen && decoder.attention.bias;
  decoder.model.feed_forward_bias = config.boolean("mlp_bias", false);
  std::optional<int64_t> window;
  int64_t first = 0;  // first layer with a window
  if (type == "mistral") {
    window = config.says("sliding_window") ? config.optional_integer("sliding_window", 1, 1 << 30) : 4096;
    if (!config.has("num_key_value_heads")) decoder.attention.kv_heads = 8;
  } else if (qwen && config.boolean("use_sliding_window", false)) {
    window = config.integer("sliding_window", 1, 1 << 30, 4096);
    first = config.integer("max_window_layers", 0, 10000, 28);
  }
  read_windows(config, decoder, window, [&](int64_t layer) { return layer >= first; });
}

PretrainedDecoder read_decoder(const std::string& folder) {
  const std::string path = folder + "/config.json";
  JsonReader config(folder_config(folder), path);
  const std::string type = config.text("model_type", "none");
  if (config.has("quantization_config")) config.fail("quantised weights in a Hugging Face folder are not supported");
  PretrainedDecoder decoder;
  decoder.source = path;
  decoder.model.name = fs::path(folder + "/.").lexically_normal().parent_path().filename().string();
  if (type == "gemma2") {
    read_gemma(config, decoder);
  } else if (type == "llama" || type == "mistral" || type == "qwen2") {
    read_llama(config, type, decoder);
  } else {
    config.fail("models of type \"", type, "\" are not supported; supported: llama, mistral, qwen2, gemma2, ",
                renamed_types());
  }
  return decoder;
}

}  // namespace

PretrainedSource open_hugging_face(const std::string& folder) {
  PretrainedSource source{read_decoder(folder), &PretrainedWeight::hugging_face};
  const bool gemma = source.decoder.gemma(), tied = source.decoder.model.tied;
  const auto tensors = folder_tensors(folder);
  for (const auto& [name, tensor] : tensors) source.shapes[name] = tensor.sizes().vec();
  source.read = [=](const PretrainedWeight& weight) -> Tensor {
    const Tensor& tensor = tensors.at(weight.hugging_face);
    fail_input_if(!at::isFloatingType(tensor.scalar_type()), "[import] ", folder, ": \"", weight.hugging_face,
                  "\" is of type ", c10::toString(tensor.scalar_type()), ", expected float32, float16 or bfloat16");
    // Gemma's norms multiply by 1 + w. The sum is kept in float32, because 16 bits would round it.
    return gemma && weight.is_norm() ? tensor.to(at::kFloat) + 1 : tensor;
  };
  // Tables of old Llamas, and a tied head that is stored anyway.
  source.is_idle = [=](const std::string& name) {
    return name.ends_with(".rotary_emb.inv_freq") || (tied && name == "lm_head.weight");
  };
  return source;
}

}  // namespace cortado
