// Falcon-H1 of transformers: softmax attention and Mamba-2 side by side in every layer, with many fixed multipliers.
#include <cmath>

#include "cortado/models/pretrained/architectures/attention.h"
#include "cortado/models/pretrained/architectures/mamba.h"
#include "cortado/models/pretrained/rope.h"

namespace cortado {
namespace {

struct FalconMultipliers {
  double embedding, head, key, attention_in, attention_out, ssm_in, ssm_out;
  double z, x, b, c, step;  // of the parts of Mamba-2's input map
  double gate, down;        // of the feed-forward's maps

  // Ours, from which the whole model follows (README.md, "Falcon-H1"): the mixers' input, which their norm multiplies;
  // what divides the residual stream; and theirs of attention's input in units of ours.
  double input() const { return ssm_in * z; }
  double stream() const { return down / gate; }
  double attention() const { return attention_in / input(); }
};

// A list of `count` multipliers; null: all 1.
std::vector<double> read_factors(JsonReader& config, const char* key, size_t count) {
  const Json list = config.any(key);
  if (list.is_null()) return std::vector<double>(count, 1.0);
  const auto good = [](const Json& it) { return it.is_number() && it > 1e-6 && it < 1e6; };
  config.fail_if(!list.is_array() || list.size() != count || !std::all_of(list.begin(), list.end(), good), "\"", key,
                 "\" must be a list of ", count, " positive numbers, got ", list.dump());
  return list.get<std::vector<double>>();
}

FalconMultipliers read_falcon_multipliers(JsonReader& config) {
  const auto one = [&](const char* key) { return config.number(key, 1e-6, 1e6, 1.0); };
  const auto ssm = read_factors(config, "ssm_multipliers", 5), mlp = read_factors(config, "mlp_multipliers", 2);
  return {one("embedding_multiplier"),
          one("lm_head_multiplier"),
          one("key_multiplier"),
          one("attention_in_multiplier"),
          one("attention_out_multiplier"),
          one("ssm_in_multiplier"),
          one("ssm_out_multiplier"),
          ssm[0],
          ssm[1],
          ssm[2],
          ssm[3],
          ssm[4],
          mlp[0],
          mlp[1]};
}

// Multiplies, in float32, because 16 bits would round the products.
std::function<Tensor(const Tensor&)> times(double factor) {
  if (factor == 1) return {};
  return [=](const Tensor& x) { return x.to(at::kFloat) * factor; };
}

// As times(), with a factor for each of several parts of the rows.
std::function<Tensor(const Tensor&)> times_parts(std::vector<std::pair<int64_t, double>> parts) {
  if (std::all_of(parts.begin(), parts.end(), [](const auto& it) { return it.second == 1; })) return {};
  return [=](const Tensor& x) {
    Tensor y = x.to(at::kFloat).clone();
    int64_t begin = 0;
    for (const auto& [rows, factor] : parts) {
      y.narrow(0, begin, rows).mul_(factor);
      begin += rows;
    }
    return y;
  };
}

RenamedMixer read_falcon_attention(JsonReader& config, int64_t dim, const FalconMultipliers& by) {
  RenamedMixer mixer = read_attention(config, dim, {.key_heads = 8});
  const double head = mixer.settings["head_dim"], ratio = by.attention();
  mixer.settings["scale"] = by.key * ratio * ratio / std::sqrt(head);
  for (const char* name : {"q.bias", "k.bias", "v.bias", "o.bias"}) mixer.then(name, times(1 / ratio));
  return mixer;
}

Mamba2Sizes read_falcon_sizes(JsonReader& config, int64_t dim, double norm_eps) {
  const int64_t usual = config.integer("mamba_expand", 1, 64, 2) * dim;
  const bool said = config.says("mamba_d_ssm");
  const int64_t width = config.integer("mamba_d_ssm", 1, kWidest, said ? usual : 1024);
  const bool norm = config.boolean("mamba_rms_norm", false), before = config.boolean("mamba_norm_before_gate", true);
  const Mamba2Sizes sizes = {.heads = config.integer("mamba_n_heads", 1, kMostHeads, 128),
                             .groups = config.integer("mamba_n_groups", 1, 65536, 1),
                             .state = config.integer("mamba_d_state", 1, 65536, 256),
                             .taps = config.integer("mamba_d_conv", 1, 64, 4),
                             .bias = false,
                             .conv_bias = config.boolean("mamba_conv_bias", true),
                             .norm_eps = norm_eps,
                             .width = width,
                             .norm = !norm    ? "none"
                                     : before ? "before_gate"
                                              : "after_gate"};
  config.fail_if(width % sizes.heads != 0, "a width of ", width, " is not divisible by mamba_n_heads (", sizes.heads,
                 ")");
  config.fail_if(sizes.heads % sizes.groups != 0, "mamba_n_heads (", sizes.heads,
                 ") is not divisible by mamba_n_groups (", sizes.groups, ")");
  if (config.any("mamba_d_head") != "auto") expect(config, "mamba_d_head", width / sizes.heads);
  expect_free_steps(config);
  return sizes;
}

RenamedMixer read_falcon_mamba2(JsonReader& config, int64_t dim, double norm_eps, const FalconMultipliers& by) {
  const Mamba2Sizes sizes = read_falcon_sizes(config, dim, norm_eps);
  const int64_t width = *sizes.width, shared = sizes.groups * sizes.state, mixed = width + 2 * shared;
  RenamedMixer mixer = mamba2_mixer(sizes, dim);
  mixer.then("conv.weight", times_parts({{width, by.x / by.z}, {shared, by.b / by.z}, {shared, by.c / by.z}}));
  if (by.step != by.z) {
    const auto scaled = times_parts({{width + mixed, 1.0}, {sizes.heads, by.step / by.z}});
    mixer.then("in.weight", [=](const Tensor& x) { return scaled(x).to(x.scalar_type()); });
  }
  // One of the maps may have a bias. There is a setting for both, so the other one's is 0.
  const bool in = config.boolean("mamba_proj_bias", false), out = config.boolean("projectors_bias", false);
  mixer.settings["bias"] = in || out;
  const auto zeros = [](const Tensor& x) { return at::zeros({x.size(0)}, x.options()); };
  const int64_t rows = width + mixed + sizes.heads;
  if (in) mixer.map("in.bias", "in_proj.bias", {rows}, times_parts({{width + mixed, by.z}, {sizes.heads, by.step}}));
  if (out && !in) mixer.map("in.bias", "in_proj.weight", {rows, dim}, zeros);
  if (out) mixer.map("out.bias", "out_proj.bias", {dim});
  if (in && !out) mixer.map("out.bias", "out_proj.weight", {dim, width}, zeros);
  return mixer;
}

// Adds the multipliers that are settings, and the norms' epsilon.
void write_multipliers(JsonReader& config, const FalconMultipliers& by, double norm_eps, Json& json) {
  const double stream = by.stream();
  if (by.embedding != stream) json["embedding"]["scale"] = by.embedding / stream;
  json["norm_eps"] = norm_eps / (stream * stream);
  config.fail_if(json["norm_eps"] > 1,
                 "\"mlp_multipliers\" are too far apart for the norms' epsilon, \"rms_norm_eps\"");
}

RenamedModel read_falcon_h1(JsonReader& config) {
  const ModelSizes sizes = read_sizes(config);
  const int64_t dim = sizes.dim, hidden = config.integer("intermediate_size", 1, kWidest, 14336);
  const bool tied = config.boolean("tie_word_embeddings", false), bias = config.boolean("mlp_bias", false);
  const double norm_eps = config.number("rms_norm_eps", 0.0, 1.0, 1e-5);
  expect_silu(config);
  expect(config, "mamba_use_mlp", true);
  const FalconMultipliers by = read_falcon_multipliers(config);
  const Rotary rope = read_whole_rope(config);
  const RenamedMixer attention = read_falcon_attention(config, dim, by),
                     mamba = read_falcon_mamba2(config, dim, norm_eps, by);
  Json json = config_of(sizes, tied);
  write_multipliers(config, by, norm_eps, json);
  write_rope(rope, json);
  json["context"] = config.integer("max_position_embeddings", 0, int64_t{1} << 40, 8192);
  json["feed_forward"] = {{"type", "swiglu"}, {"dim", hidden}, {"bias", bias}};
  json["layers"] = sizes.layers;
  json["mixer"] = {{"mixer", "parallel_hybrid"},
                   {"attention", attention.settings},
                   {"attention_scale", by.attention_out * by.attention() / by.stream()},
                   {"recurrence", mamba.settings},
                   {"recurrence_scale", by.ssm_out / by.stream()}};
  RenamedWeights weights, block;
  block.map("mixer_norm.weight", "input_layernorm.weight", {dim}, times(by.input()));
  block.within("mixer.attention", "self_attn", attention);
  block.within("mixer.recurrence", "mamba", mamba);
  block.map("feed_forward_norm.weight", "pre_ff_layernorm.weight", {dim}, times(by.gate));
  block.gated("feed_forward", "feed_forward", dim, hidden, bias);
  for (const char* name : {"gate", "up", "down"}) block.then(concat("feed_forward.", name, ".bias"), times(by.gate));
  weights.map("embedding.weight", "model.embed_tokens.weight", {sizes.vocabulary, dim});
  for (int64_t i = 0; i < sizes.layers; ++i) weights.within(concat("layers.", i), concat("model.layers.", i), block);
  weights.map("norm.weight", "model.final_layernorm.weight", {dim}, times(by.head));
  if (!tied) weights.map("head.weight", "lm_head.weight", {sizes.vocabulary, dim});
  return {{}, ModelConfig::from_json(json, config.place()), weights};
}

}  // namespace

std::vector<Architecture> falcon_h1_architectures() { return {{"falcon_h1", read_falcon_h1}}; }

}  // namespace cortado
