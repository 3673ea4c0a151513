// RWKV-4 of transformers, RWKV-6 and RWKV-7 of flash-linear-attention: time mixing and channel mixing alternate, each as
// one layer here.
#include <cmath>

#include "cortado/models/pretrained/renamed.h"

namespace cortado {
namespace {

Tensor flat(const Tensor& x) { return x.flatten(); }

// Weights of a LayerNorm with bias.
void map_layer_norm(RenamedWeights& weights, const std::string& ours, const std::string& theirs, int64_t dim) {
  for (const char* part : {".weight", ".bias"}) weights.map(ours + part, theirs + part, {dim});
}

RenamedMixer time_mixing(int64_t dim, int64_t width) {
  RenamedMixer mixer({{"mixer", "rwkv4"}, {"width", width}});
  for (const auto& [ours, theirs] : {std::pair("k", "key"), std::pair("v", "value"), std::pair("r", "receptance")}) {
    mixer.linear(ours, theirs, width, dim);
    mixer.map(concat("mix_", ours), concat("time_mix_", theirs), {1, 1, dim}, flat);
  }
  mixer.map("decay", "time_decay", {width});
  mixer.map("bonus", "time_first", {width});
  mixer.linear("o", "output", dim, width);
  return mixer;
}

RenamedMixer channel_mixing(int64_t dim, int64_t hidden) {
  RenamedMixer mixer({{"mixer", "rwkv4_channel_mix"}, {"hidden", hidden}});
  mixer.linear("k", "key", hidden, dim);
  mixer.linear("r", "receptance", dim, dim);
  mixer.linear("v", "value", dim, hidden);
  mixer.map("mix_k", "time_mix_key", {1, 1, dim}, flat);
  mixer.map("mix_r", "time_mix_receptance", {1, 1, dim}, flat);
  return mixer;
}

int64_t width_of(JsonReader& config, const char* key, int64_t usual) {
  return config.any(key).is_null() ? usual : config.integer(key, 1, kWidest);
}

// "rescale_every" halves values that 16 bits could not represent, and the norms undo it. It is ignored here.
RenamedModel read_rwkv(JsonReader& config) {
  const ModelSizes sizes = read_sizes(config);
  const int64_t dim = sizes.dim, width = width_of(config, "attention_hidden_size", dim);
  const int64_t hidden = width_of(config, "intermediate_size", 4 * dim);
  const bool tied = config.boolean("tie_word_embeddings", false);
  const RenamedMixer time = time_mixing(dim, width), channel = channel_mixing(dim, hidden);
  Json json = config_of(sizes, tied);
  json["norm"] = "layer";
  expect(config, "layer_norm_epsilon", 1e-5);  // their last norm always has this epsilon, whatever the config says
  json["norm_eps"] = 1e-5;
  json["context"] = config.integer("context_length", 0, int64_t{1} << 40, 1024);
  json["feed_forward"] = {{"type", "none"}};
  json["embedding"]["norm"] = true;
  json["layers"] = {{{"mixer", time.settings}}, {{"mixer", channel.settings}}};
  json["repeat_layers"] = sizes.layers;
  RenamedModel model{{}, ModelConfig::from_json(json, config.place()), {}};
  RenamedWeights& weights = model.weights;
  weights.map("embedding.weight", "rwkv.embeddings.weight", {sizes.vocabulary, dim});
  map_layer_norm(weights, "embedding_norm", "rwkv.blocks.0.pre_ln", dim);
  for (int64_t i = 0; i < sizes.layers; ++i) {
    const std::string block = concat("rwkv.blocks.", i), first = concat("layers.", 2 * i),
                      second = concat("layers.", 2 * i + 1);
    map_layer_norm(weights, first + ".mixer_norm", block + ".ln1", dim);
    weights.within(first + ".mixer", block + ".attention", time);
    map_layer_norm(weights, second + ".mixer_norm", block + ".ln2", dim);
    weights.within(second + ".mixer", block + ".feed_forward", channel);
  }
  map_layer_norm(weights, "norm", "rwkv.ln_out", dim);
  if (tied) {
    model.idle = {"head.weight"};
  } else {
    weights.map("head.weight", "head.weight", {sizes.vocabulary, dim});
  }
  return model;
}

// --- flash-linear-attention ---

// Adds a low-rank map, theirs.lora.0 and theirs.lora.2.
void map_low_rank(RenamedMixer& mixer, const std::string& ours, const std::string& theirs, const Shape& shape,
                  bool bias) {
  const int64_t out = shape[0], rank = shape[1], in = shape[2];
  mixer.map(ours + "_down", theirs + ".lora.0.weight", {rank, in});
  mixer.map(ours + "_up", theirs + ".lora.2.weight", {out, rank});
  if (bias) mixer.map(ours, theirs + ".lora.2.bias", {out});
}

// x_r and so on: the share of the previous token. Early files have them in one tensor, x_x.
void map_shares(RenamedMixer& mixer, int64_t dim) {
  int64_t number = 0;
  for (const std::string which : {"r", "w", "k", "v", "a", "g"}) {
    mixer.map("mix_" + which, "x_" + which, {1, 1, dim}, flat);
    mixer.or_map("mix_" + which, {"x_x", {6, dim}, {}, number++});
  }
}

// A rank that the config gives, or that its layers choose by their width: `factor` √D, in multiples of 32.
int64_t rank_of(JsonReader& config, const char* key, double factor, int64_t dim, int64_t usual) {
  if (config.says(key) && config.any(key).is_null()) {
    return std::max<int64_t>(1, std::lrint(factor * std::sqrt(static_cast<double>(dim)) / 32)) * 32;
  }
  return config.integer(key, 1, kWidest, usual);
}

RenamedMixer time_mixing_7(JsonReader& config, int64_t dim, bool first) {
  const bool by_head = !config.says("head_dim") || !config.any("head_dim").is_null();
  const int64_t heads = by_head ? dim / std::max<int64_t>(1, config.integer("head_dim", 1, kWidest, 64))
                                : config.integer("num_heads", 1, kMostHeads);
  config.fail_if(
      heads < 1 || dim % heads != 0 || (by_head && heads * config.integer("head_dim", 1, kWidest, 64) != dim),
      "hidden_size (", dim, ") is not divisible by \"", by_head ? "head_dim" : "num_heads", "\"");
  const int64_t head = dim / heads;
  const double wide = static_cast<double>(head) / 64;
  const int64_t decay = rank_of(config, "decay_low_rank_dim", 2.5 * wide, dim, 64),
                rate = rank_of(config, "a_low_rank_dim", 2.5 * wide, dim, 64),
                value = rank_of(config, "v_low_rank_dim", 1.7 * wide, dim, 16),
                gate = rank_of(config, "gate_low_rank_dim", 5, dim, 128);
  RenamedMixer mixer({{"mixer", "rwkv7"},
                      {"heads", heads},
                      {"decay_rank", decay},
                      {"rate_rank", rate},
                      {"value_rank", value},
                      {"gate_rank", gate},
                      {"norm_eps", config.number("norm_eps", 0.0, 1.0, 1e-5) * static_cast<double>(head)}});
  map_shares(mixer, dim);
  for (const std::string name : {"r", "k", "v", "o"}) mixer.linear(name, name + "_proj", dim, dim);
  map_low_rank(mixer, "decay", "w_lora", {dim, decay, dim}, true);
  map_low_rank(mixer, "rate", "a_lora", {dim, rate, dim}, true);
  if (!first) map_low_rank(mixer, "value", "v_lora", {dim, value, dim}, true);
  map_low_rank(mixer, "gate", "g_lora", {dim, gate, dim}, false);
  mixer.map("removal_scale", "k_k", {dim});
  mixer.map("key_rate", "k_a", {dim});
  mixer.map("bonus", "r_k", {heads, head});
  for (const char* part : {"weight", "bias"}) mixer.map(concat("norm_", part), concat("g_norm.", part), {dim});
  return mixer;
}

RenamedMixer channel_mixing_7(int64_t dim, int64_t hidden) {
  RenamedMixer mixer({{"mixer", "rwkv7_channel_mix"}, {"hidden", hidden}});
  mixer.linear("k", "key", hidden, dim);
  mixer.linear("v", "value", dim, hidden);
  mixer.map("mix_k", "x_k", {dim});
  return mixer;
}

RenamedMixer time_mixing_6(JsonReader& config, int64_t dim) {
  const auto width = [&](const char* key, double usual) {
    const double wide = config.number(key, 1e-6, 1e6, usual) * static_cast<double>(dim);
    config.fail_if(std::abs(wide - std::round(wide)) > 1e-6 || wide < 1, "\"", key,
                   "\" times hidden_size is no whole number: ", wide);
    return std::lround(wide);
  };
  const int64_t keys = width("expand_k", 0.5), values = width("expand_v", 1.0);
  const int64_t heads = config.integer("num_heads", 1, kMostHeads, 4);
  const int64_t rank = config.integer("proj_low_rank_dim", 1, kWidest, 32),
                decay = config.integer("gate_low_rank_dim", 1, kWidest, 64);
  head_size(config, values, heads);
  RenamedMixer mixer({{"mixer", "rwkv6"},
                      {"heads", heads},
                      {"key_dim", keys},
                      {"value_dim", values},
                      {"mix_rank", rank},
                      {"decay_rank", decay},
                      {"norm_eps", config.number("norm_eps", 0.0, 1.0, 1e-5)}});
  mixer.map("mix_x", "x_proj.0.mu", {dim});
  mixer.map("mix_down", "x_proj.0.linear.weight", {5 * rank, dim});
  mixer.map("mix_up", "x_proj.2.weight", {dim, 5 * rank},
            [=](const Tensor& x) { return x.view({dim, 5, rank}).permute({1, 2, 0}).contiguous(); });
  mixer.map("mix", "x_bias", {5, dim});
  map_low_rank(mixer, "decay", "w_proj.linear", {keys, decay, dim}, true);
  for (const auto& [name, out] :
       {std::pair("r", keys), std::pair("k", keys), std::pair("v", values), std::pair("g", values)}) {
    mixer.linear(name, concat(name, "_proj.linear"), out, dim);
  }
  mixer.map("bonus", "bonus", {heads, head_size(config, keys, heads)});
  for (const char* part : {"weight", "bias"}) mixer.map(concat("norm_", part), concat("g_norm.", part), {values});
  mixer.linear("o", "o_proj", dim, values);
  return mixer;
}

// Ours is the share of the token itself.
Tensor own_share(const Tensor& mu) { return 1 - mu.to(at::kFloat); }

RenamedMixer channel_mixing_6(int64_t dim, int64_t hidden) {
  RenamedMixer mixer({{"mixer", "rwkv4_channel_mix"}, {"hidden", hidden}});
  mixer.linear("k", "key.linear", hidden, dim);
  mixer.linear("r", "receptance.linear", dim, dim);
  mixer.linear("v", "value", dim, hidden);
  mixer.map("mix_k", "key.mu", {dim}, own_share);
  mixer.map("mix_r", "receptance.mu", {dim}, own_share);
  return mixer;
}

// "intermediate_size", or hidden_ratio · hidden_size, rounded up to a multiple of 32.
int64_t fla_hidden(JsonReader& config, int64_t dim, double usual) {
  if (!config.any("intermediate_size").is_null()) return config.integer("intermediate_size", 1, kWidest);
  const bool given = !config.any("hidden_ratio").is_null();
  const double ratio = given ? config.number("hidden_ratio", 0.1, 64.0, usual) : usual;
  return (static_cast<int64_t>(ratio * static_cast<double>(dim)) + 31) / 32 * 32;
}

// Refuses what is not computed.
void check_fla(JsonReader& config, int64_t dim) {
  const Json attention = config.any("attn"), values = config.any("value_dim");
  config.fail_if(!attention.is_null(), "\"attn\": ", attention.dump(), " is not supported");
  for (const Json& width : values.is_array() ? values : Json::array({values})) {
    config.fail_if(!width.is_null() && width != dim, "\"value_dim\": ", values.dump(), " is not hidden_size");
  }
  expect(config, "hidden_act", "sqrelu");
}

RenamedModel read_fla_rwkv(JsonReader& config, bool seven) {
  const ModelSizes sizes = read_sizes(config);
  const int64_t dim = sizes.dim, hidden = fla_hidden(config, dim, seven ? 4 : 3.5);
  check_fla(config, dim);
  const bool tied = config.boolean("tie_word_embeddings", false), normed = config.boolean("norm_first", true);
  Json json = config_of(sizes, tied);
  json["norm"] = "layer";
  json["norm_bias"] = config.boolean("norm_bias", true);
  json["norm_eps"] = config.number("norm_eps", 0.0, 1.0, 1e-5);
  json["feed_forward"] = {{"type", "none"}};
  if (normed) json["embedding"]["norm"] = true;
  const RenamedMixer channel = seven ? channel_mixing_7(dim, hidden) : channel_mixing_6(dim, hidden);
  RenamedWeights weights;
  const auto map_norm = [&](const std::string& ours, const std::string& theirs) {
    weights.map(ours + ".weight", theirs + ".weight", {dim});
    if (json["norm_bias"].get<bool>()) weights.map(ours + ".bias", theirs + ".bias", {dim});
  };
  weights.map("embedding.weight", "model.embeddings.weight", {sizes.vocabulary, dim});
  if (normed) map_norm("embedding_norm", "model.layers.0.pre_norm");
  for (int64_t i = 0; i < sizes.layers; ++i) {
    const std::string block = concat("model.layers.", i), first = concat("layers.", 2 * i),
                      second = concat("layers.", 2 * i + 1);
    const RenamedMixer time = seven ? time_mixing_7(config, dim, i == 0) : time_mixing_6(config, dim);
    map_norm(first + ".mixer_norm", block + ".attn_norm");
    weights.within(first + ".mixer", block + ".attn", time);
    map_norm(second + ".mixer_norm", block + ".ffn_norm");
    weights.within(second + ".mixer", block + ".ffn", channel);
    if (i == 0) json["layers"] = {{{"mixer", time.settings}}, {{"mixer", channel.settings}}};
  }
  json["repeat_layers"] = sizes.layers;
  map_norm("norm", "model.norm");
  if (!tied) weights.map("head.weight", "lm_head.weight", {sizes.vocabulary, dim});
  return {{}, ModelConfig::from_json(json, config.place()), weights};
}

}  // namespace

std::vector<Architecture> rwkv_architectures() {
  return {{"rwkv", read_rwkv},
          {"rwkv6", [](JsonReader& config) { return read_fla_rwkv(config, false); }},
          {"rwkv7", [](JsonReader& config) { return read_fla_rwkv(config, true); }}};
}

}  // namespace cortado
