// Gemma of transformers: GeGLU, embeddings times √D, norms that multiply by 1 + w.
#include <cmath>

#include "cortado/models/pretrained/decoders.h"

namespace cortado {
namespace {

void read_gemma_sizes(JsonReader& config, PretrainedDecoder& decoder, DecoderDefaults defaults) {
  decoder.model.feed_forward.kind = FeedForwardKind::kGeglu;
  expect_activation(config, "gelu_pytorch_tanh");
  defaults.head_dim = 256;
  defaults.tied = true;
  read_decoder_sizes(config, decoder, defaults);
  read_attention_bias(config, decoder);
  if (config.boolean("use_bidirectional_attention", false))
    config.fail("\"use_bidirectional_attention\" is not supported");
}

// null: no cap; absent: the class's default.
std::optional<double> read_cap(JsonReader& config, const char* key, std::optional<double> usual) {
  return config.says(key) ? config.optional_number(key, 1e-3, 1e6) : usual;
}

// Reads the scale of the scores and the cap of the logits, of Gemma-2 and later ones; with its class's default cap.
void read_gemma_scale(JsonReader& config, PretrainedDecoder& decoder, std::optional<double> usual_cap) {
  decoder.model.post_norm = true;
  AttentionSettings& attention = decoder.attention;
  const double scalar = config.number("query_pre_attn_scalar", 1e-6, 1e9, 256.0);
  if (scalar != static_cast<double>(attention.head_dim)) attention.scale = 1 / std::sqrt(scalar);
  decoder.model.final_softcap = read_cap(config, "final_logit_softcapping", usual_cap);
}

void read_gemma2(JsonReader& config, PretrainedDecoder& decoder) {
  read_gemma_sizes(config, decoder, {.kv_heads = 4});
  read_gemma_scale(config, decoder, 30.0);
  decoder.attention.softcap = read_cap(config, "attn_logit_softcapping", 50.0);
  decoder.attention.rotary = read_whole_rope(config);
  read_windows(config, decoder, config.integer("sliding_window", 1, 1 << 30, 4096),
               [](int64_t layer) { return layer % 2 == 0; });
}

void read_gemma1(JsonReader& config, PretrainedDecoder& decoder) {
  read_gemma_sizes(config, decoder, {.kv_heads = 16});
  decoder.attention.rotary = read_whole_rope(config);
  read_windows(config, decoder, std::nullopt, [](int64_t) { return false; });
}

// Norms of queries and keys, and rotary positions of windows and of full attention.
void read_gemma3(JsonReader& config, PretrainedDecoder& decoder) {
  // Folders of models with images say of the text part only what differs from the class's defaults.
  read_gemma_sizes(config, decoder, {.vocabulary = 262208, .heads = 8, .kv_heads = 4});
  read_gemma_scale(config, decoder, std::nullopt);
  config.fail_if(config.has("attn_logit_softcapping"),
                 "\"attn_logit_softcapping\" is not supported: transformers' class ignores it");
  decoder.attention.qk_norm = decoder.model.norm_eps;
  const int64_t pattern = config.integer("sliding_window_pattern", 1, 10000, 6);
  read_windows(config, decoder, config.integer("sliding_window", 1, 1 << 30, 4096),
               [&](int64_t layer) { return (layer + 1) % pattern != 0; });
  const auto [full, sliding] = read_ropes_by_type(config, {.full = 1e6, .sliding = 1e4});
  // The model's positions are those of the windows: only full attention is ever stretched to a longer context.
  decoder.attention.rotary = sliding;
  for (const auto& window : decoder.windows) decoder.rotaries.push_back(window ? sliding : full);
}

}  // namespace

std::vector<DecoderFamily> gemma_families() {
  return {{"gemma", read_gemma1}, {"gemma2", read_gemma2}, {"gemma3_text", read_gemma3}};
}

}  // namespace cortado
