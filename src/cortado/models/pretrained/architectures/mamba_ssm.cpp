// Mamba, Mamba-2 and Mamba-3 as the program of their authors (mamba_ssm) saves them. transformers' models of the first
// two have the same tensors.
#include <algorithm>
#include <numeric>

#include "cortado/models/pretrained/architectures/mamba.h"

namespace cortado {
namespace {

constexpr double kNormEps = 1e-5;

RenamedMixer read_first(JsonReader& ssm, int64_t dim) {
  return mamba_mixer({.expand = ssm.integer("expand", 1, 64, 2),
                      .state = ssm.integer("d_state", 1, 65536, 16),
                      .rank = read_step_rank(ssm, "dt_rank", dim),
                      .taps = ssm.integer("d_conv", 1, 64, 4),
                      .bias = ssm.boolean("bias", false),
                      .conv_bias = ssm.boolean("conv_bias", true)},
                     dim);
}

struct SsmHeads {
  int64_t expand, inner, channels, heads, groups;
};

SsmHeads read_ssm_heads(JsonReader& ssm, int64_t dim) {
  const int64_t expand = ssm.integer("expand", 1, 64, 2), head = ssm.integer("headdim", 1, 65536, 64);
  const int64_t inner = expand * dim, groups = ssm.integer("ngroups", 1, 65536, 1);
  ssm.fail_if(inner % head != 0, "a width of ", inner, " is not divisible by headdim (", head, ")");
  ssm.fail_if(inner / head % groups != 0, inner / head, " heads are not divisible by ngroups (", groups, ")");
  return {expand, inner, head, inner / head, groups};
}

RenamedMixer read_second(JsonReader& ssm, int64_t dim) {
  const SsmHeads heads = read_ssm_heads(ssm, dim);
  expect(ssm, "d_ssm", heads.inner);
  expect(ssm, "D_has_hdim", false);
  expect(ssm, "rmsnorm", true);
  expect(ssm, "norm_before_gate", false);
  expect(ssm, "dt_limit", Json::array({0.0, 1e308}));
  return mamba2_mixer({.expand = heads.expand,
                       .heads = heads.heads,
                       .groups = heads.groups,
                       .state = ssm.integer("d_state", 1, 65536, 128),
                       .taps = ssm.integer("d_conv", 1, 64, 4),
                       .bias = ssm.boolean("bias", false),
                       .conv_bias = ssm.boolean("conv_bias", true),
                       .norm_eps = kNormEps},
                      dim);
}

// The order of Mamba-3's N channels of B and C in which those that turn together are neighbours, as they are in the
// mixer and in the authors' SISO. Their MIMO turns channels i and i + N/2 together.
std::vector<int64_t> mamba3_order(int64_t state, int64_t angles, bool mimo) {
  std::vector<int64_t> order(static_cast<size_t>(state));
  std::iota(order.begin(), order.end(), 0);
  if (!mimo) return order;
  const auto rank = [=](int64_t i) {
    const int64_t pair = i % (state / 2);
    return std::pair(pair < angles ? pair : angles, pair < angles ? i / (state / 2) : i);
  };
  std::sort(order.begin(), order.end(), [&](int64_t i, int64_t j) { return rank(i) < rank(j); });
  return order;
}

struct Mamba3Shape {
  SsmHeads heads;
  int64_t state, rank, angles;
  bool mimo, normed;
};

void map_mamba3(RenamedMixer& mixer, const Mamba3Shape& it, int64_t dim) {
  const int64_t inner = it.heads.inner, heads = it.heads.heads;
  const int64_t state = it.state, rank = it.rank, keys = 2 * rank * it.heads.groups;  // of B and C
  const int64_t rest = 3 * heads + it.angles;
  const std::vector<int64_t> order = mamba3_order(state, it.angles, it.mimo);
  const auto paired = [order](const Tensor& x, int64_t dimension) {
    return x.index_select(dimension, at::tensor(order, at::kLong));
  };
  mixer.map("in.weight", "in_proj.weight", {2 * inner + keys * state + rest, dim}, [=](const Tensor& x) {
    const auto parts = x.split_with_sizes({2 * inner, keys * state, rest}, 0);
    return at::cat({parts[0], paired(parts[1].unflatten(0, {keys, state}), 1).flatten(0, 1), parts[2]}, 0);
  });
  const auto by_rank = [](const Tensor& x) { return x.transpose(0, 1); };
  for (const char* name : {"b", "c"}) {
    const std::string theirs = *name == 'b' ? "B" : "C";
    mixer.map(concat(name, "_norm.weight"), concat(theirs, "_norm.weight"), {state},
              [=](const Tensor& x) { return paired(x, 0); });
    mixer.map(concat(name, "_bias"), concat(theirs, "_bias"), {heads, rank, state},
              [=](const Tensor& x) { return paired(by_rank(x), 2); });
  }
  mixer.map("step_bias", "dt_bias", {heads});
  mixer.map("skip", "D", {heads});
  if (it.mimo) {
    for (const auto& [ours, theirs] :
         {std::pair("rank_in", "mimo_x"), std::pair("rank_gate", "mimo_z"), std::pair("rank_out", "mimo_o")})
      mixer.map(ours, theirs, {heads, rank, it.heads.channels}, by_rank);
  }
  if (it.normed) mixer.norm("norm", "norm", inner);
  mixer.linear("out", "out_proj", dim, inner);
}

RenamedMixer read_third(JsonReader& ssm, int64_t dim) {
  const SsmHeads heads = read_ssm_heads(ssm, dim);
  const int64_t state = ssm.integer("d_state", 1, 65536, 128), given = ssm.integer("mimo_rank", 1, 256, 4);
  const double fraction = ssm.number("rope_fraction", 0.0, 1.0, 0.5);
  const bool mimo = ssm.boolean("is_mimo", false), normed = ssm.boolean("is_outproj_norm", false);
  ssm.fail_if(mimo && (given == 1 || state % 2 != 0),
              "\"is_mimo\" needs a \"mimo_rank\" above 1 and an even \"d_state\"");
  RenamedMixer mixer({{"mixer", "mamba3"},
                      {"expand", heads.expand},
                      {"heads", heads.heads},
                      {"groups", heads.groups},
                      {"state", state},
                      {"rank", mimo ? given : 1},
                      {"rotary_fraction", fraction},
                      {"decay_min", ssm.number("A_floor", 0.0, 1e3, 1e-4)},
                      {"norm", normed ? "before_gate" : "none"}});
  const int64_t angles = static_cast<int64_t>(fraction * static_cast<double>(state)) / 2;
  ssm.fail_if(angles == 0, "\"rope_fraction\" of \"d_state\" is not one pair of channels");
  map_mamba3(mixer, {heads, state, mimo ? given : 1, angles, mimo, normed}, dim);
  return mixer;
}

RenamedMixer read_ssm_mixer(JsonReader& ssm, int64_t dim) {
  const std::string layer = ssm.text("layer", "Mamba1");
  if (layer == "Mamba1") return read_first(ssm, dim);
  if (layer == "Mamba2") return read_second(ssm, dim);
  ssm.fail_if(layer != "Mamba3", "\"layer\": \"", layer, "\" is not supported; supported: Mamba1, Mamba2, Mamba3");
  return read_third(ssm, dim);
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
  const RenamedMixer mixer = read_ssm_mixer(ssm, sizes.dim);
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
