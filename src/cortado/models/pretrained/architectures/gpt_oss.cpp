// gpt-oss of transformers, and as published: softmax attention with sinks, in windows in every other layer, and experts
// with biases and a limited gate. Published folders have the experts' matrices in MXFP4.
#include "cortado/models/pretrained/architectures/attention.h"
#include "cortado/models/pretrained/architectures/layered.h"
#include "cortado/models/pretrained/rope.h"

namespace cortado {
namespace {

// Without a word about positions, they are stretched as in the published models.
Rotary read_gpt_oss_rope(JsonReader& config) {
  constexpr double kTheta = 150000;
  if (config.has("rope_parameters") || config.has("rope_scaling")) return read_whole_rope(config, kTheta);
  Rotary rope(config.number("rope_theta", 1.0, 1e12, kTheta));
  rope.scaling.type = RotaryScaling::Type::kYarn;
  rope.scaling.original_context = 4096;
  rope.scaling.factor = 32;
  rope.scaling.truncate = false;
  rope.scaling.attention_factor = yarn_attention_factor(rope.scaling.factor);
  return rope;
}

// Rows `begin`, `begin` + `step`, ... of a matrix.
std::function<Tensor(const Tensor&)> every(int64_t begin, int64_t step) {
  return [=](const Tensor& x) { return x.slice(0, begin, std::nullopt, step); };
}

// A matrix of each expert. Theirs maps from the first dimension to the second; in MXFP4 the rows are the outputs, as
// here. `begin` and `step` say which of the outputs are ours.
void map_expert_matrix(RenamedWeights& weights, const std::string& ours, const std::string& theirs,
                       const ExpertSizes& sizes, int64_t begin, int64_t step) {
  const auto [count, in, out] = sizes;
  for (int64_t i = 0; i < count; ++i) {
    const std::string expert = concat("feed_forward.experts.", i, ".", ours);
    const auto rows = every(begin, step);
    weights.or_map(expert + ".weight",
                   {theirs, {count, in, out}, [=](const Tensor& x) { return rows(x.t()); }, /*index=*/i});
    weights.or_map(expert + ".weight", {theirs + "_blocks", {count, out, in}, rows, /*index=*/i});
    weights.or_map(expert + ".bias", {theirs + "_bias", {count, out}, rows, /*index=*/i});
  }
}

RenamedFeedForward read_gpt_oss_experts(JsonReader& config, int64_t dim) {
  const int64_t count = config.integer(spelled(config, {"num_local_experts", "num_experts"}), 1, 65536, 128);
  const int64_t hidden = config.integer("intermediate_size", 1, kWidest, 2880);
  RenamedFeedForward read;
  read.settings = {{"type", "experts"},
                   {"dim", hidden},
                   {"bias", true},
                   {"experts", count},
                   {"per_token", config.integer("num_experts_per_tok", 1, count, std::min<int64_t>(4, count))},
                   {"router_bias", true},
                   {"limit", config.number("swiglu_limit", 1e-3, 1e6, 7.0)},
                   {"alpha", config.number("swiglu_alpha", 1e-3, 1e3, 1.702)}};
  read.linear("feed_forward.router", "mlp.router", count, dim, /*bias=*/true);
  // Gate and up alternate.
  map_expert_matrix(read, "gate", "mlp.experts.gate_up_proj", {count, dim, 2 * hidden}, 0, 2);
  map_expert_matrix(read, "up", "mlp.experts.gate_up_proj", {count, dim, 2 * hidden}, 1, 2);
  map_expert_matrix(read, "down", "mlp.experts.down_proj", {count, hidden, dim}, 0, 1);
  return read;
}

RenamedModel read_gpt_oss(JsonReader& config) {
  LayeredModel read = read_layered(config, {.norm_eps = 1e-5, .context = 131072});
  write_rope(read_gpt_oss_rope(config), read.json);
  RenamedMixer full = read_attention(config, read.sizes.dim, {.key_heads = 8, .head_dim = 64, .bias = true});
  full.settings["sinks"] = true;
  full.map("sinks", "sinks", {full.settings["heads"]});
  RenamedMixer sliding = full;
  sliding.settings["mixer"] = "sliding_window";
  sliding.settings["window"] = config.integer("sliding_window", 1, 1 << 30, 128);
  const RenamedFeedForward experts = read_gpt_oss_experts(config, read.sizes.dim);
  std::vector<bool> slides(read.sizes.layers);
  for (size_t i = 0; i < slides.size(); i += 2) slides[i] = true;
  slides = read_layer_types(config, read.sizes.layers, {"sliding_attention"}, {"full_attention"}).value_or(slides);
  for (const bool slide : slides) read.add(slide ? sliding : full, "self_attn", experts);
  return std::move(read).model(config);
}

}  // namespace

std::vector<Architecture> gpt_oss_architectures() { return {{"gpt_oss", read_gpt_oss}}; }

}  // namespace cortado
