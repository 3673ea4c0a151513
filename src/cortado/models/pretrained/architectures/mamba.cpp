// Mamba, Mamba-2 and FalconMamba of transformers: layers of a mixer only.
#include "cortado/models/pretrained/architectures/mamba.h"

namespace cortado {
namespace {

MambaSizes read_mamba_sizes(JsonReader& config, int64_t dim) {
  // If both are given, the width counts: FalconMamba's published "expand" is another number.
  const int64_t usual = config.integer("expand", 1, 64, 2) * dim;
  const int64_t inner = config.integer("intermediate_size", 1, kWidest, usual);
  config.fail_if(inner % dim != 0, "intermediate_size (", inner, ") is not a multiple of hidden_size (", dim, ")");
  expect_silu(config);
  return {.expand = inner / dim,
          .state = config.integer("state_size", 1, 65536, 16),
          .rank = read_step_rank(config, "time_step_rank", dim),
          .taps = config.integer("conv_kernel", 1, 64, 4),
          .bias = config.boolean("use_bias", false),
          .conv_bias = config.boolean("use_conv_bias", true)};
}

RenamedMixer read_mamba(JsonReader& config, int64_t dim) { return mamba_mixer(read_mamba_sizes(config, dim), dim); }

// Its norms have no weights.
RenamedMixer read_falcon_mamba(JsonReader& config, int64_t dim) {
  MambaSizes sizes = read_mamba_sizes(config, dim);
  sizes.norm_eps = config.number("mixer_rms_eps", 0.0, 1.0, 1e-6);
  RenamedMixer mixer = mamba_mixer(sizes, dim);
  const Shape shape = {sizes.rank + 2 * sizes.state, sizes.expand * dim};
  for (const auto& [name, size] :
       {std::pair("step_norm", sizes.rank), std::pair("b_norm", sizes.state), std::pair("c_norm", sizes.state)}) {
    mixer.map(concat(name, ".weight"), "x_proj.weight", shape,
              [=](const Tensor& x) { return at::ones({size}, x.options()); });
  }
  return mixer;
}

RenamedMixer read_mamba2(JsonReader& config, int64_t dim) {
  const int64_t heads = config.integer("num_heads", 1, kMostHeads, 128);
  const Mamba2Sizes sizes = {.expand = config.integer("expand", 1, 64, 2),
                             .heads = heads,
                             .groups = config.integer("n_groups", 1, 65536, 8),
                             .state = config.integer("state_size", 1, 65536, 128),
                             .taps = config.integer("conv_kernel", 1, 64, 4),
                             .bias = config.boolean("use_bias", false),
                             .conv_bias = config.boolean("use_conv_bias", true),
                             .norm_eps = config.number("layer_norm_epsilon", 0.0, 1.0, 1e-5)};
  expect(config, "head_dim", head_size(config, sizes.expand * dim, heads));
  config.fail_if(heads % sizes.groups != 0, "num_heads (", heads, ") is not divisible by n_groups (", sizes.groups,
                 ")");
  expect_silu(config);
  expect_free_steps(config);
  return mamba2_mixer(sizes, dim);
}

using ReadMixer = RenamedMixer (*)(JsonReader& config, int64_t dim);

RenamedModel read_model(JsonReader& config, ReadMixer read_mixer, bool usually_tied) {
  const ModelSizes sizes = read_sizes(config);
  const bool tied = config.boolean("tie_word_embeddings", usually_tied);
  const RenamedMixer mixer = read_mixer(config, sizes.dim);
  Json json = config_of(sizes, tied);
  json["layers"] = sizes.layers;
  json["mixer"] = mixer.settings;
  json["norm_eps"] = config.number("layer_norm_epsilon", 0.0, 1.0, 1e-5);
  json["feed_forward"] = {{"type", "none"}};
  RenamedModel model{{}, ModelConfig::from_json(json, config.place()), {}};
  model.weights.map("embedding.weight", "backbone.embeddings.weight", {sizes.vocabulary, sizes.dim});
  RenamedWeights block;
  block.norm("mixer_norm", "norm", sizes.dim);
  block.within("mixer", "mixer", mixer);
  for (int64_t i = 0; i < sizes.layers; ++i) {
    model.weights.within(concat("layers.", i), concat("backbone.layers.", i), block);
  }
  model.weights.norm("norm", "backbone.norm_f", sizes.dim);
  if (!tied) model.weights.map("head.weight", "lm_head.weight", {sizes.vocabulary, sizes.dim});
  return model;
}

}  // namespace

RenamedMixer mamba_mixer(const MambaSizes& sizes, int64_t dim) {
  const int64_t inner = sizes.expand * dim, selected = sizes.rank + 2 * sizes.state;
  RenamedMixer mixer({{"mixer", "mamba"},
                      {"expand", sizes.expand},
                      {"state", sizes.state},
                      {"step_rank", sizes.rank},
                      {"taps", sizes.taps},
                      {"conv_bias", sizes.conv_bias},
                      {"bias", sizes.bias}});
  if (sizes.norm_eps) mixer.settings.update({{"select_norm", true}, {"norm_eps", *sizes.norm_eps}});
  mixer.linear("in", "in_proj", 2 * inner, dim, sizes.bias);
  mixer.convolution("conv", "conv1d", inner, sizes.taps, sizes.conv_bias);
  mixer.linear("select", "x_proj", selected, inner);
  mixer.linear("step", "dt_proj", inner, sizes.rank);
  mixer.map("step_bias", "dt_proj.bias", {inner});
  mixer.map("a_log", "A_log", {inner, sizes.state});
  mixer.map("skip", "D", {inner});
  mixer.linear("out", "out_proj", dim, inner, sizes.bias);
  return mixer;
}

int64_t read_step_rank(JsonReader& config, const char* key, int64_t dim) {
  const Json rank = config.any(key);
  config.fail_if(rank.is_string() && rank != "auto", "\"", key, "\": expected a number or \"auto\"");
  return rank.is_number() ? config.integer(key, 1, kWidest) : (dim + 15) / 16;
}

RenamedMixer mamba2_mixer(const Mamba2Sizes& sizes, int64_t dim) {
  const int64_t inner = sizes.width.value_or(sizes.expand * dim), mixed = inner + 2 * sizes.groups * sizes.state;
  const bool normed = sizes.norm != "none";
  RenamedMixer mixer({{"mixer", "mamba2"},
                      {sizes.width ? "width" : "expand", sizes.width.value_or(sizes.expand)},
                      {"heads", sizes.heads},
                      {"groups", sizes.groups},
                      {"state", sizes.state},
                      {"taps", sizes.taps},
                      {"conv_bias", sizes.conv_bias},
                      {"bias", sizes.bias}});
  if (normed) mixer.settings["norm_eps"] = sizes.norm_eps;
  if (sizes.norm != "after_gate") mixer.settings["norm"] = sizes.norm;
  mixer.linear("in", "in_proj", inner + mixed + sizes.heads, dim, sizes.bias);
  mixer.convolution("conv", "conv1d", mixed, sizes.taps, sizes.conv_bias);
  mixer.map("a_log", "A_log", {sizes.heads});
  mixer.map("skip", "D", {sizes.heads});
  mixer.map("step_bias", "dt_bias", {sizes.heads});
  if (normed) mixer.norm("norm", "norm", inner);
  mixer.linear("out", "out_proj", dim, inner, sizes.bias);
  return mixer;
}

void expect_free_steps(JsonReader& config) {
  const Json limit = config.any("time_step_limit");
  if (limit.is_null()) return;
  const bool free = limit.is_array() && limit.size() == 2 && limit[0].is_number() && limit[0] <= 0.0 &&
                    (!limit[1].is_number() || limit[1] >= 1e308);
  config.fail_if(!free, "\"time_step_limit\": ", limit.dump(), " is not supported, only none");
}

std::vector<Architecture> mamba_architectures() {
  return {{"mamba", [](JsonReader& config) { return read_model(config, read_mamba, true); }},
          {"mamba2", [](JsonReader& config) { return read_model(config, read_mamba2, false); }},
          {"falcon_mamba", [](JsonReader& config) { return read_model(config, read_falcon_mamba, true); }}};
}

}  // namespace cortado
