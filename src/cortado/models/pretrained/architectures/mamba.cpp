// Mamba and Mamba-2 of transformers: layers of a mixer only.
#include "cortado/models/pretrained/architectures/mamba.h"

namespace cortado {
namespace {

RenamedMixer read_mamba(JsonReader& config, int64_t dim) {
  const int64_t expand = config.integer("expand", 1, 64, 2), inner = expand * dim;
  expect(config, "intermediate_size", inner);
  const int64_t state = config.integer("state_size", 1, 65536, 16), taps = config.integer("conv_kernel", 1, 64, 4);
  const Json rank_of = config.any("time_step_rank");
  const int64_t rank = rank_of.is_number() ? config.integer("time_step_rank", 1, kWidest) : (dim + 15) / 16;
  config.fail_if(rank_of.is_string() && rank_of != "auto", "\"time_step_rank\": expected a number or \"auto\"");
  const bool bias = config.boolean("use_bias", false), conv_bias = config.boolean("use_conv_bias", true);
  expect_silu(config);
  RenamedMixer mixer({{"mixer", "mamba"},
                      {"expand", expand},
                      {"state", state},
                      {"step_rank", rank},
                      {"taps", taps},
                      {"conv_bias", conv_bias},
                      {"bias", bias}});
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
  config.fail_if(heads % sizes.groups != 0, "num_heads (", heads, ") is not divisible by n_groups (", sizes.groups, ")");
  expect_silu(config);
  expect_free_steps(config);
  return mamba2_mixer(sizes, dim);
}

RenamedModel read_model(JsonReader& config, bool second) {
  const ModelSizes sizes = read_sizes(config);
  const bool tied = config.boolean("tie_word_embeddings", !second);
  const RenamedMixer mixer = second ? read_mamba2(config, sizes.dim) : read_mamba(config, sizes.dim);
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

RenamedMixer mamba2_mixer(const Mamba2Sizes& sizes, int64_t dim) {
  const int64_t inner = sizes.expand * dim, mixed = inner + 2 * sizes.groups * sizes.state;
  RenamedMixer mixer({{"mixer", "mamba2"},
                      {"expand", sizes.expand},
                      {"heads", sizes.heads},
                      {"groups", sizes.groups},
                      {"state", sizes.state},
                      {"taps", sizes.taps},
                      {"conv_bias", sizes.conv_bias},
                      {"bias", sizes.bias},
                      {"norm_eps", sizes.norm_eps}});
  mixer.linear("in", "in_proj", inner + mixed + sizes.heads, dim, sizes.bias);
  mixer.convolution("conv", "conv1d", mixed, sizes.taps, sizes.conv_bias);
  mixer.map("a_log", "A_log", {sizes.heads});
  mixer.map("skip", "D", {sizes.heads});
  mixer.map("step_bias", "dt_bias", {sizes.heads});
  mixer.norm("norm", "norm", inner);
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
  return {{"mamba", [](JsonReader& config) { return read_model(config, false); }},
          {"mamba2", [](JsonReader& config) { return read_model(config, true); }}};
}

}  // namespace cortado
