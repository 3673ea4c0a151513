// Llama and the families of transformers that differ from it in biases, windows, norms of queries and keys, positions
// or multipliers.
#include "cortado/models/pretrained/decoders.h"

namespace cortado {
namespace {

void read_llama(JsonReader& config, PretrainedDecoder& decoder) {
  expect_activation(config, "silu");
  read_decoder_sizes(config, decoder);
  decoder.attention.rotary = read_whole_rope(config);
  read_attention_bias(config, decoder);
  decoder.model.feed_forward.bias = config.boolean("mlp_bias", false);
  read_windows(config, decoder, std::nullopt, [](int64_t) { return false; });
}

void read_mistral(JsonReader& config, PretrainedDecoder& decoder) {
  expect_activation(config, "silu");
  read_decoder_sizes(config, decoder, {.kv_heads = 8});
  decoder.attention.rotary = read_whole_rope(config);
  read_attention_bias(config, decoder);
  decoder.model.feed_forward.bias = config.boolean("mlp_bias", false);
  const auto window = config.integer_or_null("sliding_window", 1, 1 << 30, 4096);
  read_windows(config, decoder, window, [](int64_t) { return true; });
}

// Qwen2 and Qwen3 have windows from a layer on, if "use_sliding_window" says so.
void read_late_windows(JsonReader& config, PretrainedDecoder& decoder) {
  std::optional<int64_t> window;
  int64_t first = 0;
  if (config.boolean("use_sliding_window", false)) {
    window = config.integer("sliding_window", 1, 1 << 30, 4096);
    first = config.integer("max_window_layers", 0, 10000, 28);
  }
  read_windows(config, decoder, window, [&](int64_t layer) { return layer >= first; });
}

void read_qwen2(JsonReader& config, PretrainedDecoder& decoder) {
  expect_activation(config, "silu");
  read_decoder_sizes(config, decoder);
  decoder.attention.rotary = read_whole_rope(config);
  decoder.attention.bias = true;
  read_late_windows(config, decoder);
}

void read_qwen3(JsonReader& config, PretrainedDecoder& decoder) {
  expect_activation(config, "silu");
  read_decoder_sizes(config, decoder, {.kv_heads = 32, .head_dim = 128});
  decoder.attention.rotary = read_whole_rope(config);
  read_attention_bias(config, decoder);
  decoder.attention.qk_norm = decoder.model.norm_eps;
  read_late_windows(config, decoder);
}

// Whether each layer has rotary positions, which "no_rope_layers" marks with 1; by default every fourth has none.
std::vector<bool> read_rotary_layers(JsonReader& config, int64_t layers) {
  const int64_t interval = config.integer("no_rope_layer_interval", 1, 10000, 4);
  const Json marks = config.any("no_rope_layers");
  config.fail_if(!marks.is_null() && (!marks.is_array() || static_cast<int64_t>(marks.size()) < layers),
                 "\"no_rope_layers\" must mark ", layers, " layers");
  std::vector<bool> rotary;
  for (int64_t i = 0; i < layers; ++i) {
    config.fail_if(!marks.is_null() && marks[i] != 0 && marks[i] != 1, "\"no_rope_layers\" has ", excerpt(marks[i]),
                   ", expected 0 or 1");
    rotary.push_back(marks.is_null() ? (i + 1) % interval != 0 : marks[i] == 1);
  }
  return rotary;
}

void read_smollm3(JsonReader& config, PretrainedDecoder& decoder) {
  expect_activation(config, "silu");
  read_decoder_sizes(config, decoder, {.kv_heads = 4, .tied = true});
  const Rotary rotary = read_whole_rope(config, 2e6);
  decoder.attention.rotary = rotary;
  read_attention_bias(config, decoder);
  decoder.model.feed_forward.bias = config.boolean("mlp_bias", false);
  const auto turns = read_rotary_layers(config, config.integer("num_hidden_layers", 1, 10000));
  for (const bool turned : turns) decoder.rotaries.push_back(turned ? std::optional(rotary) : std::nullopt);
  const bool slides = config.boolean("use_sliding_window", false);
  const auto window = slides ? config.optional_integer("sliding_window", 1, 1 << 30) : std::nullopt;
  read_windows(config, decoder, window, [&](int64_t layer) { return !turns[layer]; });
}

void read_granite(JsonReader& config, PretrainedDecoder& decoder) {
  expect_activation(config, "silu");
  read_decoder_sizes(config, decoder);
  decoder.attention.rotary = read_whole_rope(config);
  read_attention_bias(config, decoder);
  decoder.model.feed_forward.bias = config.boolean("mlp_bias", false);
  decoder.attention.scale = config.number("attention_multiplier", 1e-6, 1e6, 1.0);
  const double residual = config.number("residual_multiplier", 1e-3, 1e3, 1.0);
  decoder.set_multipliers({config.number("embedding_multiplier", 1e-3, 1e3, 1.0), residual,
                           config.number("logits_scaling", 1e-6, 1e6, 1.0)});
  read_windows(config, decoder, std::nullopt, [](int64_t) { return false; });
}

void read_seed_oss(JsonReader& config, PretrainedDecoder& decoder) {
  expect_activation(config, "silu");
  read_decoder_sizes(config, decoder, {.kv_heads = 8, .head_dim = 128});
  decoder.attention.rotary = read_whole_rope(config);
  decoder.attention.bias = config.boolean("attention_bias", true);
  decoder.attention.output_bias = config.boolean("attention_out_bias", false);
  decoder.model.feed_forward.bias = config.boolean("mlp_bias", false);
  read_windows(config, decoder, std::nullopt, [](int64_t) { return false; });
}

}  // namespace

std::vector<DecoderFamily> llama_families() {
  return {{"llama", read_llama},       {"mistral", read_mistral},  {"qwen2", read_qwen2},
          {"qwen3", read_qwen3},       {"smollm3", read_smollm3},  {"granite", read_granite},
          {"seed_oss", read_seed_oss}, {"ministral", read_mistral}};
}

}  // namespace cortado
