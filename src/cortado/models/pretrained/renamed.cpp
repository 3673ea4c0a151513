// Models that differ from ours in the names of their weights: Mamba and Mamba-2 of transformers, and
// flash-linear-attention's GLA, RetNet, DeltaNet and Gated DeltaNet. An architecture is a function that reads its config
// and says which mixer it is and where the mixer's weights come from.
#include <filesystem>
#include <set>

#include "cortado/base/error.h"
#include "cortado/base/signals.h"
#include "cortado/base/utf8.h"
#include "cortado/models/pretrained/folder.h"
#include "cortado/models/pretrained/pretrained.h"

namespace cortado {
namespace {

using Shape = std::vector<int64_t>;
constexpr int64_t kWidest = 1 << 20;

// One layer's mixer: its settings, and its weights, by their names within both layers.
struct RenamedMixer {
  Json settings;
  std::vector<RenamedWeight> weights = {};

  void map(const std::string& ours, const std::string& theirs, const Shape& shape) {
    weights.push_back({ours, theirs, shape});
  }
  // A linear map with or without a bias.
  void linear(const std::string& ours, const std::string& theirs, int64_t out, int64_t in, bool bias = false) {
    map(ours + ".weight", theirs + ".weight", {out, in});
    if (bias) map(ours + ".bias", theirs + ".bias", {out});
  }
  void convolution(const std::string& ours, const std::string& theirs, int64_t channels, int64_t taps, bool bias) {
    map(ours + ".weight", theirs + ".weight", {channels, 1, taps});
    if (bias) map(ours + ".bias", theirs + ".bias", {channels});
  }
};

// Settings that say something else than what is computed here.
void expect(JsonReader& config, const char* key, const Json& wanted) {
  const Json given = config.any(key);
  config.fail_if(!given.is_null() && given != wanted, "\"", key, "\": ", given.dump(), " is not supported, only ",
                 wanted.dump());
}

void expect_silu(JsonReader& config) {
  const std::string activation = config.text("hidden_act", "silu");
  config.fail_if(activation != "silu" && activation != "swish", "activation \"", activation, "\" is not supported");
}

int64_t product(JsonReader& config, const char* key, double factor, int64_t dim) {
  const double wide = config.number(key, 1e-6, 1e6, factor) * static_cast<double>(dim);
  config.fail_if(wide != std::round(wide) || wide < 1, "\"", key, "\" times hidden_size is no whole number: ", wide);
  return static_cast<int64_t>(wide);
}

int64_t head_size(JsonReader& config, int64_t width, int64_t heads) {
  config.fail_if(width % heads != 0, "a width of ", width, " is not divisible by num_heads (", heads, ")");
  return width / heads;
}

RenamedMixer read_mamba(JsonReader& config, int64_t dim) {
  const int64_t expand = config.integer("expand", 1, 64, 2), inner = expand * dim;
  expect(config, "intermediate_size", inner);
  const int64_t state = config.integer("state_size", 1, 65536, 16), taps = config.integer("conv_kernel", 1, 64, 4);
  const Json rank_of = config.any("time_step_rank");
  const int64_t rank = rank_of.is_number() ? config.integer("time_step_rank", 1, kWidest) : (dim + 15) / 16;
  config.fail_if(rank_of.is_string() && rank_of != "auto", "\"time_step_rank\": expected a number or \"auto\"");
  const bool bias = config.boolean("use_bias", false), conv_bias = config.boolean("use_conv_bias", true);
  expect_silu(config);
  RenamedMixer mixer{{{"mixer", "mamba"},
                      {"expand", expand},
                      {"state", state},
                      {"step_rank", rank},
                      {"taps", taps},
                      {"conv_bias", conv_bias},
                      {"bias", bias}}};
  mixer.linear("in", "in_proj", 2 * inner, dim, bias);
  mixer.convolution("conv", "conv1d", inner, taps, conv_bias);
  mixer.linear("select", "x_proj", rank + 2 * state, inner);
  mixer.linear("step", "dt_proj", inner, rank);
  mixer.map("step_bias", "dt_proj.bias", {inner});
  mixer.map("a_log", "A_log", {inner, state});
  mixer.map("skip", "D", {inner});
  mixer.linear("out", "out_proj", dim, inner, bias);
  return mixer;
}

// Steps are not held between bounds here: [0, infinity], as JSON of one kind or another says it.
void expect_free_steps(JsonReader& config) {
  const Json limit = config.any("time_step_limit");
  if (limit.is_null()) return;
  const bool free = limit.is_array() && limit.size() == 2 && limit[0].is_number() && limit[0] <= 0.0 &&
                    (!limit[1].is_number() || limit[1] >= 1e308);
  config.fail_if(!free, "\"time_step_limit\": ", limit.dump(), " is not supported, only none");
}

RenamedMixer read_mamba2(JsonReader& config, int64_t dim) {
  const int64_t expand = config.integer("expand", 1, 64, 2), inner = expand * dim;
  const int64_t heads = config.integer("num_heads", 1, 65536, 128);
  expect(config, "head_dim", head_size(config, inner, heads));
  const int64_t state = config.integer("state_size", 1, 65536, 128), taps = config.integer("conv_kernel", 1, 64, 4);
  const int64_t groups = config.integer("n_groups", 1, 65536, 8), mixed = inner + 2 * groups * state;
  const bool bias = config.boolean("use_bias", false), conv_bias = config.boolean("use_conv_bias", true);
  const double norm_eps = config.number("layer_norm_epsilon", 0.0, 1.0, 1e-5);
  expect_silu(config);
  expect_free_steps(config);
  RenamedMixer mixer{{{"mixer", "mamba2"},
                      {"expand", expand},
                      {"heads", heads},
                      {"groups", groups},
                      {"state", state},
                      {"taps", taps},
                      {"conv_bias", conv_bias},
                      {"bias", bias},
                      {"norm_eps", norm_eps}}};
  mixer.linear("in", "in_proj", inner + mixed + heads, dim, bias);
  mixer.convolution("conv", "conv1d", mixed, taps, conv_bias);
  mixer.map("a_log", "A_log", {heads});
  mixer.map("skip", "D", {heads});
  mixer.map("step_bias", "dt_bias", {heads});
  mixer.map("norm.weight", "norm.weight", {inner});
  mixer.linear("out", "out_proj", dim, inner, bias);
  return mixer;
}

// What flash-linear-attention's models have in common.
int64_t read_fla(JsonReader& config) {
  for (const char* key : {"attn", "attnres_block_size", "clamp_min"}) {
    const Json given = config.any(key);
    config.fail_if(!given.is_null(), "\"", key, "\": ", given.dump(), " is not supported");
  }
  expect(config, "elementwise_affine", true);
  expect_silu(config);
  return config.boolean("use_short_conv", false) ? config.integer("conv_size", 1, 64, 4) : 0;
}

// q, k and v with their convolutions, called conv_q or q_conv here, and the map of the output.
void map_projections(RenamedMixer& mixer, int64_t dim, int64_t keys, int64_t values, int64_t taps, bool conv_first) {
  for (const auto& [name, width] : {std::pair("q", keys), std::pair("k", keys), std::pair("v", values)}) {
    const std::string one = name;
    mixer.linear(one, one + "_proj", width, dim);
    if (taps > 0) mixer.convolution(conv_first ? "conv_" + one : one + "_conv", one + "_conv1d", width, taps, false);
  }
  mixer.linear("o", "o_proj", dim, values);
}

// GLA and RetNet, which differ in their defaults and in GLA's gates.
RenamedMixer read_gated_linear(JsonReader& config, int64_t dim, bool gla) {
  const int64_t said = read_fla(config), taps = gla ? said : 0;  // RetNet's model makes none, whatever its config says
  const int64_t heads = config.integer("num_heads", 1, 65536, gla ? 4 : 8);
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
  RenamedMixer mixer{{{"mixer", gla ? "gla" : "retention"},
                      {"heads", heads},
                      {"key_dim", keys},
                      {"value_dim", values},
                      {"taps", taps},
                      {"feature_map", map == "relu" ? "relu" : features},
                      {"norm_eps", config.number("norm_eps", 0.0, 1.0, 1e-6)}}};
  map_projections(mixer, dim, keys, values, taps, /*conv_first=*/true);
  mixer.linear("g", "g_proj", values, dim);
  // Its name where norm and gate are one kernel.
  mixer.map("norm.weight", config.boolean("fuse_norm", true) ? "g_norm_swish_gate.weight" : "g_norm.weight",
            {head_size(config, values, heads)});
  if (!gla) {
    mixer.settings["rotary"] = true;
    return mixer;
  }
  constexpr int64_t kRank = 16;  // of the gates' map, which the config does not say
  mixer.linear("decay_down", "gk_proj.0", kRank, dim);
  mixer.linear("decay_up", "gk_proj.1", keys, kRank, /*bias=*/true);
  return mixer;
}

void map_delta(RenamedMixer& mixer, int64_t dim, int64_t keys, int64_t values, int64_t taps) {
  const int64_t heads = mixer.settings.at("heads"), head = mixer.settings.at("value_head_dim");
  map_projections(mixer, dim, keys, values, taps, /*conv_first=*/false);
  mixer.linear("beta", "b_proj", heads, dim);
  if (mixer.settings.at("output_gate") != "none") mixer.linear("gate", "g_proj", values, dim);
  mixer.map("norm.weight", "o_norm.weight", {head});
}

RenamedMixer read_delta_net(JsonReader& config, int64_t dim) {
  if (!config.says("use_short_conv")) config.fail("\"use_short_conv\" is missing");
  const int64_t taps = read_fla(config), heads = config.integer("num_heads", 1, 65536, 16);
  const int64_t keys = product(config, "expand_k", 1.0, dim), values = product(config, "expand_v", 1.0, dim);
  for (const auto& [key, wanted] : std::vector<std::pair<const char*, Json>>{
           {"qk_activation", "silu"}, {"qk_norm", "l2"}, {"use_beta", true}, {"use_output_norm", true}}) {
    expect(config, key, wanted);
  }
  RenamedMixer mixer{{{"mixer", "delta_net"},
                      {"heads", heads},
                      {"head_dim", head_size(config, keys, heads)},
                      {"value_head_dim", head_size(config, values, heads)},
                      {"taps", taps},
                      {"reflect", config.boolean("allow_neg_eigval", false)},
                      {"output_gate", config.boolean("use_gate", false) ? "silu" : "none"},
                      {"norm_eps", config.number("norm_eps", 0.0, 1.0, 1e-6)}}};
  map_delta(mixer, dim, keys, values, taps);
  return mixer;
}

RenamedMixer read_gated_delta_net(JsonReader& config, int64_t dim) {
  if (!config.says("use_short_conv")) config.fail("\"use_short_conv\" is missing");
  const int64_t taps = read_fla(config), key_heads = config.integer("num_heads", 1, 65536, 6);
  const int64_t head = config.integer("head_dim", 1, 65536, 256), value = product(config, "expand_v", 2.0, head);
  const Json value_heads = config.any("num_v_heads");
  const int64_t heads = value_heads.is_null() ? key_heads : config.integer("num_v_heads", 1, 65536);
  const std::string gate = config.text("output_gate_activation", "swish");
  config.fail_if(gate != "swish" && gate != "silu" && gate != "sigmoid", "\"output_gate_activation\": \"", gate,
                 "\" is not supported");
  RenamedMixer mixer{{{"mixer", "gated_delta_net"},
                      {"heads", heads},
                      {"key_heads", key_heads},
                      {"head_dim", head},
                      {"value_head_dim", value},
                      {"taps", taps},
                      {"reflect", config.boolean("allow_neg_eigval", false)},
                      {"output_gate", !config.boolean("use_gate", true) ? "none"
                                      : gate == "sigmoid"               ? gate
                                                                        : "silu"},
                      {"norm_eps", config.number("norm_eps", 0.0, 1.0, 1e-6)}}};
  map_delta(mixer, dim, key_heads * head, heads * value, taps);
  mixer.linear("decay", "a_proj", heads, dim);
  mixer.map("a_log", "A_log", {heads});
  mixer.map("dt_bias", "dt_bias", {heads});
  return mixer;
}

// An architecture: what its config's "model_type" says, whether it is transformers' Mamba or one of
// flash-linear-attention's, and the ratio that its feed-forward is wider by if nothing else is said.
struct Architecture {
  const char* type;
  bool mamba;
  double ratio;
  bool tied;  // where the config does not say
  RenamedMixer (*read)(JsonReader& config, int64_t dim);
};
const Architecture kArchitectures[] = {
    {"mamba", true, 0, true, read_mamba},
    {"mamba2", true, 0, false, read_mamba2},
    {"gla", false, 4, false, [](JsonReader& config, int64_t dim) { return read_gated_linear(config, dim, true); }},
    {"retnet", false, 2, false, [](JsonReader& config, int64_t dim) { return read_gated_linear(config, dim, false); }},
    {"delta_net", false, 4, false, read_delta_net},
    {"gated_deltanet", false, 4, false, read_gated_delta_net}};

// "intermediate_size", else hidden_ratio · hidden_size · 2/3, up to a multiple of 256.
int64_t hidden_width(JsonReader& config, int64_t dim, double ratio) {
  if (!config.any("intermediate_size").is_null()) return config.integer("intermediate_size", 1, kWidest);
  const double wide = config.number("hidden_ratio", 0.1, 64.0, ratio) * static_cast<double>(dim);
  return (static_cast<int64_t>(wide * 2 / 3) + 255) / 256 * 256;
}

void map_feed_forward(RenamedModel& model, const std::string& ours, const std::string& theirs, int64_t dim,
                      int64_t hidden) {
  model.weights.push_back({ours + "feed_forward_norm.weight", theirs + "mlp_norm.weight", {dim}});
  for (const char* name : {"gate", "up"}) {
    model.weights.push_back(
        {concat(ours, "feed_forward.", name, ".weight"), concat(theirs, "mlp.", name, "_proj.weight"), {hidden, dim}});
  }
  model.weights.push_back({ours + "feed_forward.down.weight", theirs + "mlp.down_proj.weight", {dim, hidden}});
}

RenamedModel read_model(JsonReader& config, const Architecture& architecture, const std::string& name) {
  const bool mamba = architecture.mamba;
  const int64_t dim = config.integer("hidden_size", 1, kWidest), layers = config.integer("num_hidden_layers", 1, 10000);
  const int64_t vocabulary = config.integer("vocab_size", 1, int64_t{1} << 31);
  const bool tied = config.boolean("tie_word_embeddings", architecture.tied);
  const RenamedMixer mixer = architecture.read(config, dim);
  const int64_t hidden = mamba ? 0 : hidden_width(config, dim, architecture.ratio);
  Json json = {{"name", name},  {"vocabulary", vocabulary}, {"dim", dim},
               {"heads", 1},    {"layers", layers},         {"mixer", mixer.settings},
               {"norm", "rms"}, {"positions", "none"},      {"embedding", {{"tied", tied}}}};
  json["norm_eps"] = config.number(mamba ? "layer_norm_epsilon" : "norm_eps", 0.0, 1.0, mamba ? 1e-5 : 1e-6);
  json["feed_forward"] = mamba ? Json{{"type", "none"}} : Json{{"type", "swiglu"}, {"dim", hidden}};
  RenamedModel model{config.place(), ModelConfig::from_json(json, config.place()), {}};
  const std::string root = mamba ? "backbone." : "model.";
  model.weights.push_back({"embedding.weight", root + "embeddings.weight", {vocabulary, dim}});
  for (int64_t i = 0; i < layers; ++i) {
    const std::string ours = concat("layers.", i, "."), theirs = concat(root, "layers.", i, ".");
    model.weights.push_back({ours + "mixer_norm.weight", theirs + (mamba ? "norm.weight" : "attn_norm.weight"), {dim}});
    for (const RenamedWeight& weight : mixer.weights) {
      model.weights.push_back(
          {ours + "mixer." + weight.ours, theirs + (mamba ? "mixer." : "attn.") + weight.theirs, weight.shape});
    }
    if (!mamba) map_feed_forward(model, ours, theirs, dim, hidden);
  }
  model.weights.push_back({"norm.weight", root + (mamba ? "norm_f.weight" : "norm.weight"), {dim}});
  if (!tied) model.weights.push_back({"head.weight", "lm_head.weight", {vocabulary, dim}});
  return model;
}

// Every tensor has its place, and every place its tensor.
void check_tensors(const RenamedModel& model, const std::map<std::string, Tensor>& tensors) {
  const std::string where = concat("[import] ", model.source, ": ");
  std::set<std::string> used;
  for (const RenamedWeight& weight : model.weights) {
    const auto found = tensors.find(weight.theirs);
    fail_input_if(found == tensors.end(), where, "there is no tensor \"", weight.theirs, "\"");
    fail_input_if(
        found->second.sizes() != at::IntArrayRef(weight.shape) || !at::isFloatingType(found->second.scalar_type()),
        where, "tensor \"", weight.theirs, "\" is ", found->second.scalar_type(), " ", found->second.sizes(),
        ", expected ", at::IntArrayRef(weight.shape));
    used.insert(weight.theirs);
  }
  for (const auto& [name, tensor] : tensors) {
    const bool head = name == "lm_head.weight" && model.config.tied;
    fail_input_if(!used.contains(name) && !head, where, "tensor ", printable(name),
                  " belongs to no part of this architecture that is supported");
  }
}

PretrainedModel read_renamed(const RenamedModel& model, const std::string& folder,
                             std::optional<at::ScalarType> dtype) {
  const auto tensors = folder_tensors(folder);
  check_tensors(model, tensors);
  PretrainedModel read{model.config, {}};
  for (const RenamedWeight& weight : model.weights) {
    if (interrupt_requested()) throw Failure(concat("[import] ", model.source, ": stopped"));
    Tensor tensor = tensors.at(weight.theirs);
    if (tensor.dim() == 3) tensor = tensor.squeeze(1);
    read.weights.emplace_back(weight.ours, (dtype ? tensor.to(*dtype) : tensor).contiguous());
  }
  return read;
}

}  // namespace

std::optional<RenamedModel> renamed_model(const std::string& folder) {
  JsonReader config(folder_config(folder), folder + "/config.json");
  const std::string type = config.text("model_type", "none");
  std::string name = std::filesystem::path(folder + "/.").lexically_normal().parent_path().filename().string();
  if (utf8_valid_prefix(name) != name.size()) name = "imported";
  for (const Architecture& architecture : kArchitectures) {
    if (type == architecture.type) return read_model(config, architecture, name);
  }
  return std::nullopt;
}

std::string renamed_types() {
  std::string list;
  for (const Architecture& architecture : kArchitectures) list += concat(list.empty() ? "" : ", ", architecture.type);
  return list;
}

PretrainedReader pretrained_reader(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::exists(path + "/config.json", ignored)) {
    if (const auto renamed = renamed_model(path)) {
      return {renamed->config.vocabulary, [=](auto dtype) { return read_renamed(*renamed, path, dtype); }};
    }
  }
  const PretrainedSource source = open_pretrained(path);
  return {source.decoder.model.vocabulary, [=](auto dtype) { return read_pretrained(source, dtype); }};
}

}  // namespace cortado
