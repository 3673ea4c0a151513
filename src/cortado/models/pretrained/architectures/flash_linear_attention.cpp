// Models of flash-linear-attention: GLA, RetNet, DeltaNet, Gated DeltaNet, Gated DeltaProduct, KDA, HGRN2.
#include <cmath>

#include "cortado/models/pretrained/renamed.h"

namespace cortado {
namespace {

// The default of a function that fla's layer calls, whatever the config says.
constexpr double kHgrn2NormEps = 1e-5;

int64_t product(JsonReader& config, const char* key, double factor, int64_t dim) {
  const double wide = config.number(key, 1e-6, 1e6, factor) * static_cast<double>(dim);
  config.fail_if(wide != std::round(wide) || wide < 1, "\"", key, "\" times hidden_size is no whole number: ", wide);
  return static_cast<int64_t>(wide);
}

// Reads the settings that all fla models share. Returns the taps of the short convolutions, 0 for none.
int64_t read_fla(JsonReader& config) {
  for (const char* key : {"attn", "attnres_block_size", "clamp_min"}) {
    const Json given = config.any(key);
    config.fail_if(!given.is_null(), "\"", key, "\": ", given.dump(), " is not supported");
  }
  expect(config, "elementwise_affine", true);
  expect_silu(config);
  return config.boolean("use_short_conv", false) ? config.integer("conv_size", 1, 64, 4) : 0;
}

// q, k and v with their convolutions, which our mixers call conv_q or q_conv, and the output map. A token has `steps`
// keys and values.
void map_projections(RenamedMixer& mixer, int64_t dim, int64_t keys, int64_t values, int64_t taps, bool conv_first,
                     int64_t steps = 1) {
  for (const auto& [name, width] :
       {std::pair("q", keys), std::pair("k", steps * keys), std::pair("v", steps * values)}) {
    const std::string one = name;
    mixer.linear(one, one + "_proj", width, dim);
    if (taps > 0) mixer.convolution(conv_first ? "conv_" + one : one + "_conv", one + "_conv1d", width, taps, false);
  }
  mixer.linear("o", "o_proj", dim, values);
}

// GLA and RetNet; they differ in their defaults and in GLA's gates.
RenamedMixer read_gated_linear(JsonReader& config, int64_t dim, bool gla) {
  // RetNet's model has no convolutions, whatever its config says
  const int64_t said = read_fla(config), taps = gla ? said : 0;
  const int64_t heads = config.integer("num_heads", 1, kMostHeads, gla ? 4 : 8);
  const int64_t keys = product(config, "expand_k", gla ? 0.5 : 1.0, dim),
                values = product(config, "expand_v", gla ? 1.0 : 2.0, dim);
  expect(config, "num_kv_heads", heads);
  expect(config, "use_output_gate", true);
  expect(config, "use_gk", true);
  expect(config, "use_gv", false);
  const Json map = config.any("feature_map");
  const std::string features = map.is_null() ? "none" : map == "swish" ? "silu" : map.dump();
  config.fail_if(features != "none" && features != "silu" && map != "relu", "\"feature_map\": ", map.dump(),
                 " is not supported");
  RenamedMixer mixer({{"mixer", gla ? "gla" : "retention"},
                      {"heads", heads},
                      {"key_dim", keys},
                      {"value_dim", values},
                      {"taps", taps},
                      {"feature_map", map == "relu" ? "relu" : features},
                      {"norm_eps", config.number("norm_eps", 0.0, 1.0, 1e-6)}});
  map_projections(mixer, dim, keys, values, taps, /*conv_first=*/true);
  mixer.linear("g", "g_proj", values, dim);
  // The name depends on whether norm and gate are one kernel there.
  mixer.map("norm.weight", config.boolean("fuse_norm", true) ? "g_norm_swish_gate.weight" : "g_norm.weight",
            {head_size(config, values, heads)});
  if (!gla) {
    mixer.settings["rotary"] = true;
    return mixer;
  }
  constexpr int64_t kRank = 16;  // rank of the gates' map, which the config does not give
  mixer.linear("decay_down", "gk_proj.0", kRank, dim);
  mixer.linear("decay_up", "gk_proj.1", keys, kRank, /*bias=*/true);
  return mixer;
}

void map_delta(RenamedMixer& mixer, int64_t dim, int64_t keys, int64_t values, int64_t taps) {
  const int64_t heads = mixer.settings.at("heads"), head = mixer.settings.at("value_head_dim");
  const int64_t steps = mixer.settings.value("steps", int64_t{1});
  map_projections(mixer, dim, keys, values, taps, /*conv_first=*/false, steps);
  mixer.linear("beta", "b_proj", steps * heads, dim);
  if (mixer.settings.at("output_gate") != "none") mixer.linear("gate", "g_proj", values, dim);
  mixer.map("norm.weight", "o_norm.weight", {head});
}

void map_head_decay(RenamedMixer& mixer, int64_t dim, int64_t heads) {
  mixer.linear("decay", "a_proj", heads, dim);
  mixer.map("a_log", "A_log", {heads});
  mixer.map("dt_bias", "dt_bias", {heads});
}

RenamedMixer read_delta_net(JsonReader& config, int64_t dim) {
  if (!config.says("use_short_conv")) config.fail("\"use_short_conv\" is missing");
  const int64_t taps = read_fla(config), heads = config.integer("num_heads", 1, kMostHeads, 16);
  const int64_t keys = product(config, "expand_k", 1.0, dim), values = product(config, "expand_v", 1.0, dim);
  for (const auto& [key, wanted] : std::vector<std::pair<const char*, Json>>{
           {"qk_activation", "silu"}, {"qk_norm", "l2"}, {"use_beta", true}, {"use_output_norm", true}}) {
    expect(config, key, wanted);
  }
  RenamedMixer mixer({{"mixer", "delta_net"},
                      {"heads", heads},
                      {"head_dim", head_size(config, keys, heads)},
                      {"value_head_dim", head_size(config, values, heads)},
                      {"taps", taps},
                      {"reflect", config.boolean("allow_neg_eigval", false)},
                      {"output_gate", config.boolean("use_gate", false) ? "silu" : "none"},
                      {"norm_eps", config.number("norm_eps", 0.0, 1.0, 1e-6)}});
  map_delta(mixer, dim, keys, values, taps);
  return mixer;
}

RenamedMixer read_gated_delta_net(JsonReader& config, int64_t dim) {
  if (!config.says("use_short_conv")) config.fail("\"use_short_conv\" is missing");
  const int64_t taps = read_fla(config), key_heads = config.integer("num_heads", 1, kMostHeads, 6);
  const int64_t head = config.integer("head_dim", 1, kMostHeads, 256), value = product(config, "expand_v", 2.0, head);
  const Json value_heads = config.any("num_v_heads");
  const int64_t heads = value_heads.is_null() ? key_heads : config.integer("num_v_heads", 1, kMostHeads);
  const std::string gate = config.text("output_gate_activation", "swish");
  config.fail_if(gate != "swish" && gate != "silu" && gate != "sigmoid", "\"output_gate_activation\": \"", gate,
                 "\" is not supported");
  RenamedMixer mixer({{"mixer", "gated_delta_net"},
                      {"heads", heads},
                      {"key_heads", key_heads},
                      {"head_dim", head},
                      {"value_head_dim", value},
                      {"taps", taps},
                      {"reflect", config.boolean("allow_neg_eigval", false)},
                      {"output_gate", !config.boolean("use_gate", true) ? "none"
                                      : gate == "sigmoid"               ? gate
                                                                        : "silu"},
                      {"norm_eps", config.number("norm_eps", 0.0, 1.0, 1e-6)}});
  map_delta(mixer, dim, key_heads * head, heads * value, taps);
  map_head_decay(mixer, dim, heads);
  return mixer;
}

RenamedMixer read_gated_delta_product(JsonReader& config, int64_t dim) {
  if (!config.says("use_short_conv")) config.fail("\"use_short_conv\" is missing");
  const int64_t taps = read_fla(config), heads = config.integer("num_heads", 1, kMostHeads, 6);
  const int64_t head = config.integer("head_dim", 1, kMostHeads, 256), value = product(config, "expand_v", 2.0, head);
  const bool gated = config.boolean("use_forget_gate", false);
  RenamedMixer mixer({{"mixer", "gated_delta_product"},
                      {"heads", heads},
                      {"head_dim", head},
                      {"value_head_dim", value},
                      {"taps", taps},
                      {"steps", config.integer("num_householder", 1, 64, 1)},
                      {"gated", gated},
                      {"reflect", config.boolean("allow_neg_eigval", false)},
                      {"output_gate", config.boolean("use_output_gate", true) ? "silu" : "none"},
                      {"norm_eps", config.number("norm_eps", 0.0, 1.0, 1e-6)}});
  map_delta(mixer, dim, heads * head, heads * value, taps);
  if (gated) map_head_decay(mixer, dim, heads);
  return mixer;
}

RenamedMixer read_kda(JsonReader& config, int64_t dim) {
  if (!config.says("use_short_conv")) config.fail("\"use_short_conv\" is missing");
  const int64_t taps = read_fla(config), key_heads = config.integer("num_heads", 1, kMostHeads, 16);
  const int64_t head = config.integer("head_dim", 1, 65536, 128), value = product(config, "expand_v", 1.0, head);
  const int64_t heads = config.has("num_v_heads") ? config.integer("num_v_heads", 1, kMostHeads) : key_heads;
  const std::optional<double> bound = config.optional_number("lower_bound", -1e3, -1e-3);
  RenamedMixer mixer({{"mixer", "kda"},
                      {"heads", heads},
                      {"key_heads", key_heads},
                      {"head_dim", head},
                      {"value_head_dim", value},
                      {"taps", taps},
                      {"reflect", config.boolean("allow_neg_eigval", false)},
                      {"gate_rank", value},
                      {"gate_bias", true},
                      {"output_gate", "sigmoid"},
                      {"norm_eps", config.number("norm_eps", 0.0, 1.0, 1e-6)}});
  if (bound) mixer.settings["lower_bound"] = *bound;
  map_projections(mixer, dim, key_heads * head, heads * value, taps, /*conv_first=*/false);
  mixer.linear("beta", "b_proj", heads, dim);
  mixer.linear("gate_in", "g_proj.0", value, dim);
  mixer.linear("gate", "g_proj.1", heads * value, value, /*bias=*/true);
  mixer.linear("decay_in", "f_proj.0", value, dim);
  mixer.linear("decay", "f_proj.1", heads * head, value);
  mixer.map("a_log", "A_log", {heads});
  mixer.map("dt_bias", "dt_bias", {heads * head}, [=](const Tensor& x) { return x.view({heads, head}); });
  mixer.norm("norm", "o_norm", value);
  return mixer;
}

// The logit of layer i's lower bound per channel. A softmax shares the learned values among the layers, and they are
// summed up to layer i.
Tensor bound_logit(const Tensor& learned, int64_t layer) {
  const Tensor shares = at::softmax(learned.to(at::kDouble), 0).narrow(0, 1, layer);  // the first layer has none
  return at::logit(shares.sum(0), 1e-15).to(at::kFloat);
}

RenamedMixer read_hgrn2(JsonReader& config, int64_t dim) {
  if (!config.says("use_short_conv")) config.fail("\"use_short_conv\" is missing");
  const int64_t taps = read_fla(config);
  // null: the number of heads is given instead
  const bool by_ratio = !config.says("expand_ratio") || !config.any("expand_ratio").is_null();
  const int64_t ratio = by_ratio ? config.integer("expand_ratio", 1, kWidest, 128) : 0;
  const int64_t heads = by_ratio ? dim / ratio : config.integer("num_heads", 1, kMostHeads);
  config.fail_if(heads < 1 || dim % heads != 0 || (by_ratio && heads * ratio != dim), "hidden_size (", dim,
                 ") is not divisible by \"", by_ratio ? "expand_ratio" : "num_heads", "\"");
  RenamedMixer mixer(
      {{"mixer", "hgrn2"}, {"heads", heads}, {"key_dim", dim}, {"taps", taps}, {"norm_eps", kHgrn2NormEps}});
  for (const std::string name : {"q", "f", "i"}) {
    mixer.linear(name, name + "_proj", dim, dim);
    if (taps > 0) mixer.convolution(name + ".conv", name + "_conv1d", dim, taps, false);
  }
  mixer.norm("norm", "g_norm", dim);
  mixer.linear("o", "o_proj", dim, dim);
  return mixer;
}

// "intermediate_size", or hidden_ratio · hidden_size · 2/3, rounded up to a multiple of 256.
int64_t hidden_width(JsonReader& config, int64_t dim, double ratio) {
  if (!config.any("intermediate_size").is_null()) return config.integer("intermediate_size", 1, kWidest);
  const double wide = config.number("hidden_ratio", 0.1, 64.0, ratio) * static_cast<double>(dim);
  return (static_cast<int64_t>(wide * 2 / 3) + 255) / 256 * 256;
}

using ReadMixer = RenamedMixer (*)(JsonReader& config, int64_t dim);

// `ratio` is the default of the feed-forward's ratio. `bounds`: the model has "lower_bounds", one tensor for all
// layers.
RenamedModel read_model(JsonReader& config, ReadMixer read, double ratio, bool bounds) {
  const ModelSizes sizes = read_sizes(config);
  const bool tied = config.boolean("tie_word_embeddings", false);
  const RenamedMixer mixer = read(config, sizes.dim);
  const int64_t hidden = hidden_width(config, sizes.dim, ratio);
  Json json = config_of(sizes, tied);
  json["norm_eps"] = config.number("norm_eps", 0.0, 1.0, 1e-6);
  json["feed_forward"] = {{"type", "swiglu"}, {"dim", hidden}};
  RenamedWeights weights, block;
  weights.map("embedding.weight", "model.embeddings.weight", {sizes.vocabulary, sizes.dim});
  block.norm("mixer_norm", "attn_norm", sizes.dim);
  block.within("mixer", "attn", mixer);
  block.norm("feed_forward_norm", "mlp_norm", sizes.dim);
  block.gated("feed_forward", "mlp", sizes.dim, hidden);
  for (int64_t i = 0; i < sizes.layers; ++i) {
    const std::string ours = concat("layers.", i);
    weights.within(ours, concat("model.layers.", i), block);
    Json settings = mixer.settings;
    if (bounds && i > 0) {
      settings["learned_bound"] = true;
      weights.map(ours + ".mixer.bound", "model.lower_bounds", {sizes.layers, sizes.dim},
                  [=](const Tensor& learned) { return bound_logit(learned, i); });
    }
    json["layers"].push_back({{"mixer", settings}});
  }
  weights.norm("norm", "model.norm", sizes.dim);
  if (!tied) weights.map("head.weight", "lm_head.weight", {sizes.vocabulary, sizes.dim});
  return {{}, ModelConfig::from_json(json, config.place()), weights};
}

Architecture architecture(const std::string& type, ReadMixer read, double ratio) {
  return {type, [=](JsonReader& config) { return read_model(config, read, ratio, false); }};
}

}  // namespace

std::vector<Architecture> flash_linear_attention_architectures() {
  return {architecture(
              "gla", [](JsonReader& config, int64_t dim) { return read_gated_linear(config, dim, true); }, 4),
          architecture(
              "retnet", [](JsonReader& config, int64_t dim) { return read_gated_linear(config, dim, false); }, 2),
          architecture("delta_net", read_delta_net, 4),
          architecture("gated_deltanet", read_gated_delta_net, 4),
          architecture("gated_deltaproduct", read_gated_delta_product, 4),
          architecture("kda", read_kda, 4),
          Architecture{"hgrn2", [](JsonReader& config) {
                         const bool bounds = config.boolean("use_lower_bound", true);
                         RenamedModel model = read_model(config, read_hgrn2, 4, bounds);
                         if (bounds) model.idle = {"model.lower_bounds"};  // a model of one layer does not use it
                         return model;
                       }}};
}

}  // namespace cortado
