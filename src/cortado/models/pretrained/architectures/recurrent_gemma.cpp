// RecurrentGemma of transformers: Griffin's recurrent blocks, with sliding windows between them.
#include <cmath>

#include "cortado/models/pretrained/renamed.h"
#include "cortado/models/pretrained/rope.h"

namespace cortado {
namespace {

RenamedMixer recurrent(JsonReader& config, int64_t dim, int64_t heads) {
  const Json said = config.any("lru_width");
  const int64_t width = said.is_null() ? dim : config.integer("lru_width", 1, kWidest),
                block = head_size(config, width, heads);
  const int64_t taps = config.integer("conv1d_width", 1, 64, 4);
  RenamedMixer mixer({{"mixer", "griffin"}, {"width", width}, {"heads", heads}, {"taps", taps}});
  mixer.linear("x", "linear_x", width, dim, true);
  mixer.linear("y", "linear_y", width, dim, true);
  mixer.convolution("conv", "conv_1d", width, taps, true);
  mixer.map("rg_lru.lambda", "rg_lru.recurrent_param", {width});
  for (const auto& [ours, theirs] :
       {std::pair("recurrence_gate", "recurrent_gate"), std::pair("input_gate", "input_gate")}) {
    mixer.map(concat("rg_lru.", ours, ".weight"), concat("rg_lru.", theirs, "_weight"), {heads, block, block});
    mixer.map(concat("rg_lru.", ours, ".bias"), concat("rg_lru.", theirs, "_bias"), {heads, block},
              [](const Tensor& x) { return x.flatten(); });
  }
  mixer.linear("o", "linear_out", dim, width, true);
  return mixer;
}

RenamedMixer windowed(JsonReader& config, int64_t dim, int64_t heads) {
  const Json said = config.any("num_key_value_heads");
  const int64_t key_heads = said.is_null() ? heads : config.integer("num_key_value_heads", 1, kMostHeads);
  const int64_t head = config.integer("head_dim", 1, 65536, dim / heads);
  const bool bias = config.boolean("attention_bias", false);
  RenamedMixer mixer({{"mixer", "sliding_window"},
                      {"window", config.integer("attention_window_size", 1, 1 << 30, 2048)},
                      {"heads", heads},
                      {"kv_heads", key_heads},
                      {"head_dim", head},
                      {"rotary_fraction", read_rope(config, 0.5).fraction},
                      {"bias", bias},
                      {"output_bias", true}});
  mixer.linear("q", "q_proj", heads * head, dim, bias);
  for (const char* name : {"k", "v"}) mixer.linear(name, concat(name, "_proj"), key_heads * head, dim, bias);
  mixer.linear("o", "o_proj", dim, heads * head, true);
  return mixer;
}

// Whether the layer is recurrent, by "block_types", a pattern that repeats.
bool is_recurrent(JsonReader& config, int64_t layer) {
  Json types = config.any("block_types");
  if (types.is_null()) types = {"recurrent", "recurrent", "attention"};
  const bool list = types.is_array() && !types.empty();
  const Json type = list ? types[static_cast<size_t>(layer) % types.size()] : types;
  config.fail_if(!list || (type != "recurrent" && type != "attention"), "\"block_types\": ", types.dump(),
                 " is not supported, only \"recurrent\" and \"attention\"");
  return type == "recurrent";
}

RenamedModel read_recurrent_gemma(JsonReader& config) {
  const ModelSizes sizes = read_sizes(config);
  const int64_t dim = sizes.dim, heads = config.integer("num_attention_heads", 1, kMostHeads, 10);
  head_size(config, dim, heads);
  const int64_t hidden = config.integer("intermediate_size", 2, kWidest) / 2;  // the config counts gate and up together
  expect(config, "hidden_activation", "gelu_pytorch_tanh");
  const bool tied = config.boolean("tie_word_embeddings", true);
  const PretrainedRope rope = read_rope(config, 0.5);
  Json json = config_of(sizes, tied);
  json["heads"] = heads;
  json["norm_eps"] = config.number("rms_norm_eps", 0.0, 1.0, 1e-6);
  json["feed_forward"] = {{"type", "geglu"}, {"dim", hidden}, {"bias", true}};
  json["positions"] = "rotary";
  json["rope_theta"] = rope.theta;
  json["final_softcap"] = config.number("logits_soft_cap", 1e-3, 1e6, 30.0);
  // transformers keeps √D in bfloat16, whatever the weights' type.
  json["embedding"]["scale"] =
      static_cast<double>(static_cast<float>(c10::BFloat16(static_cast<float>(std::sqrt(static_cast<double>(dim))))));
  const RenamedMixer recurrence = recurrent(config, dim, heads), window = windowed(config, dim, heads);
  RenamedWeights weights;
  weights.map("embedding.weight", "model.embed_tokens.weight", {sizes.vocabulary, dim});
  for (int64_t i = 0; i < sizes.layers; ++i) {
    const RenamedMixer& mixer = is_recurrent(config, i) ? recurrence : window;
    json["layers"].push_back({{"mixer", mixer.settings}});
    RenamedWeights block;
    block.norm("mixer_norm", "temporal_pre_norm", dim, /*zero_centred=*/true);
    block.within("mixer", "temporal_block", mixer);
    block.norm("feed_forward_norm", "channel_pre_norm", dim, /*zero_centred=*/true);
    block.gated("feed_forward", "mlp_block", dim, hidden, /*bias=*/true);
    weights.within(concat("layers.", i), concat("model.layers.", i), block);
  }
  weights.norm("norm", "model.final_norm", dim, /*zero_centred=*/true);
  if (!tied) weights.map("head.weight", "lm_head.weight", {sizes.vocabulary, dim});
  return {{}, ModelConfig::from_json(json, config.place()), weights};
}

}  // namespace

std::vector<Architecture> recurrent_gemma_architectures() { return {{"recurrent_gemma", read_recurrent_gemma}}; }

}  // namespace cortado
