// Mamba and Mamba-2 as the program of their authors (mamba_ssm) saves them. transformers' models have the same tensors.
#include "cortado/models/pretrained/architectures/mamba.h"

namespace cortado {
namespace {

constexpr double kNormEps = 1e-5;

// Its names for 1 and 2.
bool is_second(JsonReader& ssm) {
  const std::string layer = ssm.text("layer", "Mamba1");
  ssm.fail_if(layer != "Mamba1" && layer != "Mamba2", "\"layer\": \"", layer,
              "\" is not supported; supported: Mamba1, Mamba2");
  return layer == "Mamba2";
}

RenamedMixer read_first(JsonReader& ssm, int64_t dim) {
  return mamba_mixer({.expand = ssm.integer("expand", 1, 64, 2),
                      .state = ssm.integer("d_state", 1, 65536, 16),
                      .rank = read_step_rank(ssm, "dt_rank", dim),
                      .taps = ssm.integer("d_conv", 1, 64, 4),
                      .bias = ssm.boolean("bias", false),
                      .conv_bias = ssm.boolean("conv_bias", true)},
                     dim);
}

RenamedMixer read_second(JsonReader& ssm, int64_t dim) {
  const int64_t expand = ssm.integer("expand", 1, 64, 2), head = ssm.integer("headdim", 1, 65536, 64);
  const int64_t inner = expand * dim, groups = ssm.integer("ngroups", 1, 65536, 1);
  ssm.fail_if(inner % head != 0, "a width of ", inner, " is not divisible by headdim (", head, ")");
  ssm.fail_if(inner / head % groups != 0, inner / head, " heads are not divisible by ngroups (", groups, ")");
  expect(ssm, "d_ssm", inner);
  expect(ssm, "D_has_hdim", false);
  expect(ssm, "rmsnorm", true);
  expect(ssm, "norm_before_gate", false);
  expect(ssm, "dt_limit", Json::array({0.0, 1e308}));
  return mamba2_mixer({.expand = expand,
                       .heads = inner / head,
                       .groups = groups,
                       .state = ssm.integer("d_state", 1, 65536, 128),
                       .taps = ssm.integer("d_conv", 1, 64, 4),
                       .bias = ssm.boolean("bias", false),
                       .conv_bias = ssm.boolean("conv_bias", true),
                       .norm_eps = kNormEps},
                      dim);
}

// The embedding has as many rows as tokens, rounded up.
int64_t read_vocabulary(JsonReader& config) {
  const int64_t multiple = config.integer("pad_vocab_size_multiple", 1, kWidest, 8);
  return (config.integer("vocab_size", 1, int64_t{1} << 31) + multiple - 1) / multiple * multiple;
}

RenamedModel read_mamba_ssm(JsonReader& config) {
  const ModelSizes sizes = {config.integer("d_model", 1, kWidest), config.integer("n_layer", 1, kDeepest),
                            read_vocabulary(config)};
  JsonReader ssm(config.object("ssm_cfg"), config.place() + ".ssm_cfg");
  const RenamedMixer mixer = is_second(ssm) ? read_second(ssm, sizes.dim) : read_first(ssm, sizes.dim);
  // Only the initialisation and the kernels depend on these.
  for (const char* key : {"A_init_range", "dt_min", "dt_max", "dt_init", "dt_scale", "dt_init_floor", "conv_init",
                          "chunk_size", "use_fast_path", "use_mem_eff_path"})
    ssm.any(key);
  ssm.finish();
  expect(config, "rms_norm", true);
  expect(config, "d_intermediate", 0);
  expect(config, "attn_layer_idx", Json::array());
  const bool tied = config.boolean("tie_embeddings", true);
  Json json = config_of(sizes, tied);
  json["layers"] = sizes.layers;
  json["mixer"] = mixer.settings;
  json["norm_eps"] = kNormEps;
  json["feed_forward"] = {{"type", "none"}};
  RenamedModel model{{}, ModelConfig::from_json(json, config.place()), {}};
  model.weights.map("embedding.weight", "backbone.embedding.weight", {sizes.vocabulary, sizes.dim});
  RenamedWeights block;
  block.norm("mixer_norm", "norm", sizes.dim);
  block.within("mixer", "mixer", mixer);
  for (int64_t i = 0; i < sizes.layers; ++i)
    model.weights.within(concat("layers.", i), concat("backbone.layers.", i), block);
  model.weights.norm("norm", "backbone.norm_f", sizes.dim);
  if (!tied) model.weights.map("head.weight", "lm_head.weight", {sizes.vocabulary, sizes.dim});
  return model;
}

}  // namespace

std::vector<Architecture> mamba_ssm_architectures() { return {{kMambaSsm, read_mamba_ssm}}; }

}  // namespace cortado
