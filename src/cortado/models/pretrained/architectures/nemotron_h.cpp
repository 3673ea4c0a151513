// Nemotron-H and Nemotron-3 of transformers. Their layers are Mamba-2, softmax attention without positions, or a
// feed-forward or experts alone, which become a part of the layer before them.
#include <map>

#include "cortado/models/pretrained/architectures/attention.h"
#include "cortado/models/pretrained/architectures/layered.h"
#include "cortado/models/pretrained/architectures/mamba.h"

namespace cortado {
namespace {

enum class NemotronLayer { kMamba2, kAttention, kFeedForward, kExperts };

bool is_mixer(NemotronLayer layer) { return layer == NemotronLayer::kMamba2 || layer == NemotronLayer::kAttention; }

// The kinds of the layers: a list of names, or the published files' text with a letter for each.
std::vector<NemotronLayer> read_pattern(JsonReader& config) {
  static const std::map<std::string, NemotronLayer> kKinds = {{"M", NemotronLayer::kMamba2},
                                                              {"linear_attention", NemotronLayer::kMamba2},
                                                              {"mamba", NemotronLayer::kMamba2},
                                                              {"*", NemotronLayer::kAttention},
                                                              {"full_attention", NemotronLayer::kAttention},
                                                              {"attention", NemotronLayer::kAttention},
                                                              {"-", NemotronLayer::kFeedForward},
                                                              {"mlp", NemotronLayer::kFeedForward},
                                                              {"E", NemotronLayer::kExperts},
                                                              {"moe", NemotronLayer::kExperts}};
  const char* key = config.has("layers_block_type") ? "layers_block_type"
                    : config.has("layer_types")     ? "layer_types"
                                                    : "hybrid_override_pattern";
  Json names = config.any(key);
  if (names.is_string()) {
    Json letters = Json::array();
    for (const char letter : names.get<std::string>()) letters.push_back(std::string(1, letter));
    names = letters;
  }
  config.fail_if(!names.is_array() || names.empty() || names.size() > kDeepest, "\"", key,
                 "\" must name the layers' kinds, got ", names.dump());
  std::vector<NemotronLayer> layers;
  for (const Json& name : names) {
    const auto found = kKinds.find(name.is_string() ? name.get<std::string>() : "");
    config.fail_if(found == kKinds.end(), "\"", key, "\": layers of the kind ", name.dump(),
                   " are not supported, only linear_attention (M), full_attention (*), mlp (-) and moe (E)");
    const bool follows = !layers.empty() && is_mixer(layers.back());
    config.fail_if(!is_mixer(found->second) && !follows, "\"", key, "\": layer ", layers.size(),
                   " is a feed-forward that follows no mixer, which is not supported");
    layers.push_back(found->second);
  }
  return layers;
}

RenamedMixer read_nemotron_mamba2(JsonReader& config, int64_t dim, double norm_eps) {
  const int64_t heads = config.integer("mamba_num_heads", 1, kMostHeads, 128);
  const Mamba2Sizes sizes = {.heads = heads,
                             .groups = config.integer("n_groups", 1, 65536, 8),
                             .state = config.integer("ssm_state_size", 1, 65536, 128),
                             .taps = config.integer("conv_kernel", 1, 64, 4),
                             .bias = config.boolean("use_bias", false),
                             .conv_bias = config.boolean("use_conv_bias", true),
                             .norm_eps = norm_eps,
                             .width = heads * config.integer("mamba_head_dim", 1, 65536, 64)};
  config.fail_if(heads % sizes.groups != 0, "mamba_num_heads (", heads, ") is not divisible by n_groups (",
                 sizes.groups, ")");
  expect(config, "mamba_hidden_act", "silu");
  RenamedMixer mixer = mamba2_mixer(sizes, dim);
  mixer.settings["step_min"] = config.number("time_step_min", 0.0, 1e3, 0.001);
  return mixer;
}

RenamedMixer read_nemotron_attention(JsonReader& config, int64_t dim) {
  expect(config, "attention_bias", false);
  expect(config, "sliding_window", Json());
  return read_attention(config, dim, {.key_heads = 8, .head_dim = 128});
}

RenamedFeedForward read_nemotron_feed_forward(JsonReader& config, int64_t dim) {
  const int64_t hidden = config.integer("intermediate_size", 1, kWidest, 21504);
  const bool bias = config.boolean("mlp_bias", false);
  expect(config, "mlp_hidden_act", "relu2");
  RenamedFeedForward read;
  read.settings = {{"type", "mlp"}, {"dim", hidden}, {"activation", "relu2"}, {"bias", bias}};
  read.linear("feed_forward.up", "mixer.up_proj", hidden, dim, bias);
  read.linear("feed_forward.down", "mixer.down_proj", dim, hidden, bias);
  return read;
}

// An expert is an mlp. Those of Nemotron-3 Super see a map of the input.
RenamedFeedForward read_nemotron_experts(JsonReader& config, int64_t dim) {
  const int64_t count = config.integer("n_routed_experts", 1, 65536, 8);
  const int64_t hidden = config.integer("moe_intermediate_size", 1, kWidest, 7688);
  const int64_t shared = config.integer("moe_shared_expert_intermediate_size", 1, kWidest, 7688);
  const int64_t latent = config.has("moe_latent_size") ? config.integer("moe_latent_size", 1, kWidest) : 0;
  const int64_t inner = latent > 0 ? latent : dim;
  expect(config, "mlp_bias", false);  // transformers' experts have none, but their shared expert would
  RenamedFeedForward read;
  read.settings = read_grouped_experts(config, {count, dim, hidden}, {.per_token = 2});
  read.settings.update({{"gated", false}, {"activation", "relu2"}, {"shared", shared}, {"latent", latent}});
  read.linear("feed_forward.router", "mixer.gate", count, dim);
  read.map("feed_forward.choice_bias", "mixer.gate.e_score_correction_bias", {count});
  for (int64_t i = 0; i < count; ++i) {
    const std::string ours = concat("feed_forward.experts.", i), theirs = concat("mixer.experts.", i);
    read.linear(ours + ".up", theirs + ".up_proj", hidden, inner);
    read.linear(ours + ".down", theirs + ".down_proj", inner, hidden);
    // transformers 5 has them in one tensor in memory.
    const auto own = [i](const Tensor& x) { return x.select(0, i); };
    read.or_map(ours + ".up.weight", {"mixer.experts.up_proj", {count, hidden, inner}, own});
    read.or_map(ours + ".down.weight", {"mixer.experts.down_proj", {count, inner, hidden}, own});
  }
  read.linear("feed_forward.shared.up", "mixer.shared_experts.up_proj", shared, dim);
  read.linear("feed_forward.shared.down", "mixer.shared_experts.down_proj", dim, shared);
  if (latent == 0) return read;
  read.linear("feed_forward.latent_in", "mixer.fc1_latent_proj", latent, dim);
  read.linear("feed_forward.latent_out", "mixer.fc2_latent_proj", dim, latent);
  return read;
}

RenamedModel read_nemotron_h(JsonReader& config) {
  const int64_t dim = config.integer("hidden_size", 1, kWidest, 4096);
  const int64_t vocabulary = config.integer("vocab_size", 1, int64_t{1} << 31, 131072);
  expect(config, "tie_word_embeddings", false);  // transformers reads a head whatever this says
  const double norm_eps = config.number("layer_norm_epsilon", 0.0, 1.0, 1e-5);
  const std::vector<NemotronLayer> pattern = read_pattern(config);
  const RenamedMixer mamba = read_nemotron_mamba2(config, dim, norm_eps),
                     attention = read_nemotron_attention(config, dim);
  const bool any = std::ranges::count(pattern, NemotronLayer::kExperts) > 0;
  const RenamedFeedForward dense = read_nemotron_feed_forward(config, dim),
                           experts = any ? read_nemotron_experts(config, dim) : RenamedFeedForward();
  RenamedWeights weights;
  weights.map("embedding.weight", "model.embeddings.weight", {vocabulary, dim});
  Json layers = Json::array();
  for (size_t i = 0; i < pattern.size(); ++i) {
    RenamedWeights part;
    if (!is_mixer(pattern[i])) {
      const RenamedFeedForward& feed_forward = pattern[i] == NemotronLayer::kExperts ? experts : dense;
      layers.back()["feed_forward"] = feed_forward.settings;
      part = feed_forward;
      part.norm("feed_forward_norm", "norm", dim);
    } else {
      const RenamedMixer& mixer = pattern[i] == NemotronLayer::kMamba2 ? mamba : attention;
      layers.push_back({{"mixer", mixer.settings}, {"feed_forward", false}});
      part.within("mixer", "mixer", mixer);
      part.norm("mixer_norm", "norm", dim);
    }
    weights.within(concat("layers.", layers.size() - 1), concat("model.layers.", i), part);
  }
  weights.norm("norm", "model.norm_f", dim);
  weights.map("head.weight", "lm_head.weight", {vocabulary, dim});
  weights.or_within("model.", "backbone.");  // as published
  Json json = config_of({dim, static_cast<int64_t>(layers.size()), vocabulary}, /*tied=*/false);
  json["layers"] = layers;
  json["norm_eps"] = norm_eps;
  json["context"] = config.integer("max_position_embeddings", 0, int64_t{1} << 40, 4096);
  json["feed_forward"] = any ? experts.settings : dense.settings;
  return {{}, ModelConfig::from_json(json, config.place()), weights, {}, {"mtp."}};
}

}  // namespace

std::vector<Architecture> nemotron_h_architectures() { return {{"nemotron_h", read_nemotron_h}}; }

}  // namespace cortado
