// Bamba, Granite 4 (granitemoehybrid) and Jamba of transformers: Mamba-2 or, in Jamba, Mamba in most layers, softmax
// attention in the others.
#include "cortado/models/pretrained/architectures/attention.h"
#include "cortado/models/pretrained/architectures/mamba.h"
#include "cortado/models/pretrained/rope.h"

namespace cortado {
namespace {

// What the readers below have read of a hybrid's config.
struct Hybrid {
  ModelSizes sizes;
  Json json;                  // of config_of(), with everything that is neither a mixer nor a feed-forward
  std::vector<bool> attends;  // per layer: softmax attention
  RenamedMixer recurrence, attention;
  Json feed_forward = {};
  RenamedWeights feed_forward_weights = {};
  const char* feed_forward_norm = "pre_ff_layernorm";
  const char* last_norm = "final_layernorm";
  double logits_divisor = 1;
};

RenamedModel model_of(JsonReader& config, Hybrid hybrid) {
  const ModelSizes& sizes = hybrid.sizes;
  RenamedWeights weights;
  weights.map("embedding.weight", "model.embed_tokens.weight", {sizes.vocabulary, sizes.dim});
  for (int64_t i = 0; i < sizes.layers; ++i) {
    const bool attends = hybrid.attends[i];
    const RenamedMixer& mixer = attends ? hybrid.attention : hybrid.recurrence;
    hybrid.json["layers"].push_back({{"mixer", mixer.settings}});
    RenamedWeights block = hybrid.feed_forward_weights;
    block.norm("mixer_norm", "input_layernorm", sizes.dim);
    block.within("mixer", attends ? "self_attn" : "mamba", mixer);
    block.norm("feed_forward_norm", hybrid.feed_forward_norm, sizes.dim);
    weights.within(concat("layers.", i), concat("model.layers.", i), block);
  }
  hybrid.json["feed_forward"] = hybrid.feed_forward;
  // The last norm's weights divide the logits. They are kept in float32, because 16 bits would round them.
  const double divisor = hybrid.logits_divisor;
  const auto divide = [=](const Tensor& x) { return x.to(at::kFloat) / divisor; };
  weights.map("norm.weight", concat("model.", hybrid.last_norm, ".weight"), {sizes.dim},
              divisor == 1 ? std::function<Tensor(const Tensor&)>() : divide);
  const ModelConfig read = ModelConfig::from_json(hybrid.json, config.place());
  if (!read.tied) weights.map("head.weight", "lm_head.weight", {sizes.vocabulary, sizes.dim});
  return {{}, read, weights};
}

RenamedMixer read_mamba2_part(JsonReader& config, int64_t dim, double norm_eps) {
  const Mamba2Sizes sizes = {.expand = config.integer("mamba_expand", 1, 64, 2),
                             .heads = config.integer("mamba_n_heads", 1, kMostHeads, 128),
                             .groups = config.integer("mamba_n_groups", 1, 65536, 1),
                             .state = config.integer("mamba_d_state", 1, 65536, 256),
                             .taps = config.integer("mamba_d_conv", 1, 64, 4),
                             .bias = config.boolean("mamba_proj_bias", false),
                             .conv_bias = config.boolean("mamba_conv_bias", true),
                             .norm_eps = norm_eps};
  const int64_t inner = sizes.expand * dim;
  config.fail_if(inner % sizes.heads != 0, "a width of ", inner, " is not divisible by mamba_n_heads (", sizes.heads,
                 ")");
  config.fail_if(sizes.heads % sizes.groups != 0, "mamba_n_heads (", sizes.heads,
                 ") is not divisible by mamba_n_groups (", sizes.groups, ")");
  if (config.any("mamba_d_head") != "auto") expect(config, "mamba_d_head", inner / sizes.heads);
  expect_free_steps(config);
  return mamba2_mixer(sizes, dim);
}

void read_rotary(JsonReader& config, double usual_fraction, Hybrid& hybrid) {
  const PretrainedRope rope = read_rope(config, usual_fraction);
  write_rope(rope, hybrid.json);
  if (rope.fraction != 1) hybrid.attention.settings["rotary_fraction"] = rope.fraction;
}

// Values that a config may omit. `key_heads`: 0 stands for as many as heads.
struct HybridDefaults {
  double norm_eps;
  int64_t key_heads, context;
};

// Reads what all hybrids' configs say with the same keys. `read_recurrence` gets the epsilon of the norms.
Hybrid read_hybrid(JsonReader& config, const HybridDefaults& usual,
                   RenamedMixer (*read_recurrence)(JsonReader&, int64_t dim, double norm_eps)) {
  const ModelSizes sizes = read_sizes(config);
  expect_silu(config);
  const double norm_eps = config.number("rms_norm_eps", 0.0, 1.0, usual.norm_eps);
  Json json = config_of(sizes, config.boolean("tie_word_embeddings", false));
  json["norm_eps"] = norm_eps;
  json["context"] = config.integer("max_position_embeddings", 0, int64_t{1} << 40, usual.context);
  return {.sizes = sizes,
          .json = json,
          .attends = std::vector<bool>(sizes.layers),
          .recurrence = read_recurrence(config, sizes.dim, norm_eps),
          .attention = read_attention(config, sizes.dim, usual.key_heads)};
}

RenamedModel read_bamba(JsonReader& config) {
  Hybrid hybrid = read_hybrid(config, {1e-5, 8, 262144}, read_mamba2_part);
  read_rotary(config, 0.5, hybrid);
  const Json indices = config.any("attn_layer_indices");
  for (const auto& [_, index] : indices.items()) {
    const bool there = index.is_number_integer() && index >= 0 && index < hybrid.sizes.layers;
    config.fail_if(!indices.is_array() || !there, "\"attn_layer_indices\" must list layers, 0 to ",
                   hybrid.sizes.layers - 1, ", got ", indices.dump());
    hybrid.attends[index.get<size_t>()] = true;
  }
  const int64_t hidden = config.integer("intermediate_size", 1, kWidest, 14336);
  const bool bias = config.boolean("mlp_bias", false);
  hybrid.feed_forward = {{"type", "swiglu"}, {"dim", hidden}, {"bias", bias}};
  hybrid.feed_forward_weights.gated("feed_forward", "feed_forward", hybrid.sizes.dim, hidden, bias);
  return model_of(config, std::move(hybrid));
}

// Experts and a shared one without a gate; or, without experts, the shared one alone.
void read_granite_feed_forward(JsonReader& config, Hybrid& hybrid) {
  RenamedWeights& weights = hybrid.feed_forward_weights;
  const int64_t dim = hybrid.sizes.dim, experts = config.integer("num_local_experts", 0, 65536, 8);
  const int64_t shared = config.integer("shared_intermediate_size", 1, kWidest, 1024);
  weights.gated_joint(experts > 0 ? "feed_forward.shared" : "feed_forward", "shared_mlp.input_linear.weight",
                      "shared_mlp.output_linear.weight", dim, shared);
  hybrid.feed_forward = {{"type", "swiglu"}, {"dim", shared}};
  if (experts == 0) return;
  const int64_t hidden = config.integer("intermediate_size", 1, kWidest, 11008);
  hybrid.feed_forward = {
      {"type", "experts"},
      {"dim", hidden},
      {"experts", experts},
      {"per_token", config.integer("num_experts_per_tok", 1, experts, std::min<int64_t>(2, experts))},
      {"shared", shared},
      {"shared_gate", false}};
  // As published, and as transformers 5 has them in memory.
  weights.map("feed_forward.router.weight", "block_sparse_moe.router.layer.weight", {experts, dim});
  weights.or_map("feed_forward.router.weight", {"block_sparse_moe.router.weight", {experts, dim}});
  weights.joint_experts("block_sparse_moe.input_linear.weight", "block_sparse_moe.output_linear.weight",
                        {experts, dim, hidden});
  weights.joint_experts("block_sparse_moe.experts.gate_up_proj", "block_sparse_moe.experts.down_proj",
                        {experts, dim, hidden});
}

// Granite's block is x += m f(norm x). Here the stream is x / m: the embedding's multiplier is divided by m, and the
// epsilon of the norms, which do not see a factor of their input, by m².
void read_multipliers(JsonReader& config, Hybrid& hybrid) {
  const double residual = config.number("residual_multiplier", 1e-3, 1e3, 1.0);
  const double embedding = config.number("embedding_multiplier", 1e-3, 1e3, 1.0);
  const double eps = hybrid.json["norm_eps"].get<double>() / (residual * residual);
  config.fail_if(eps > 1, "\"residual_multiplier\" ", residual, " is too small");
  hybrid.json["norm_eps"] = eps;
  if (embedding != residual) hybrid.json["embedding"]["scale"] = embedding / residual;
  hybrid.attention.settings["scale"] = config.number("attention_multiplier", 1e-6, 1e6, 1.0);
  hybrid.logits_divisor = config.number("logits_scaling", 1e-6, 1e6, 1.0);
}

RenamedModel read_granite_hybrid(JsonReader& config) {
  Hybrid hybrid = read_hybrid(config, {1e-6, 0, 2048}, read_mamba2_part);
  expect(config, "normalization_function", "rmsnorm");
  read_multipliers(config, hybrid);
  const std::string positions = config.text("position_embedding_type", "nope");
  config.fail_if(positions != "nope" && positions != "rope", "\"position_embedding_type\": \"", positions,
                 "\" is not supported, only \"rope\" and \"nope\"");
  if (positions == "rope") read_rotary(config, 1.0, hybrid);
  const Json types = config.any("layer_types");
  const auto layers = static_cast<size_t>(hybrid.sizes.layers);
  for (size_t i = 0; !types.is_null() && i < layers; ++i) {
    const Json type = types.is_array() && types.size() == layers ? types[i] : Json();
    hybrid.attends[i] = type == "full_attention" || type == "attention";
    config.fail_if(!hybrid.attends[i] && type != "linear_attention" && type != "mamba",
                   "\"layer_types\" must name each layer's: mamba or attention, or as transformers 5 calls them, "
                   "linear_attention or full_attention");
  }
  read_granite_feed_forward(config, hybrid);
  hybrid.feed_forward_norm = "post_attention_layernorm";
  hybrid.last_norm = "norm";
  return model_of(config, std::move(hybrid));
}

RenamedMixer read_mamba_part(JsonReader& config, int64_t dim, double norm_eps) {
  const MambaSizes sizes = {.expand = config.integer("mamba_expand", 1, 64, 2),
                            .state = config.integer("mamba_d_state", 1, 65536, 16),
                            .rank = read_step_rank(config, "mamba_dt_rank", dim),
                            .taps = config.integer("mamba_d_conv", 1, 64, 4),
                            .bias = config.boolean("mamba_proj_bias", false),
                            .conv_bias = config.boolean("mamba_conv_bias", true),
                            .norm_eps = norm_eps};
  RenamedMixer mixer = mamba_mixer(sizes, dim);
  mixer.norm("step_norm", "dt_layernorm", sizes.rank);
  mixer.norm("b_norm", "b_layernorm", sizes.state);
  mixer.norm("c_norm", "c_layernorm", sizes.state);
  return mixer;
}

// Whether each layer is one of those that a period and an offset choose: OFFSET, OFFSET + PERIOD, ...
std::vector<bool> read_period(JsonReader& config, const std::string& name, int64_t usual_period, int64_t usual_offset,
                              int64_t layers) {
  const int64_t period = config.integer(name + "_period", 1, kDeepest, usual_period);
  const int64_t offset = config.integer(name + "_offset", 0, period - 1, std::min(usual_offset, period - 1));
  std::vector<bool> chosen(layers);
  for (int64_t i = offset; i < layers; i += period) chosen[i] = true;
  return chosen;
}

RenamedModel read_jamba(JsonReader& config) {
  Hybrid hybrid = read_hybrid(config, {1e-6, 8, 262144}, read_mamba_part);
  const int64_t dim = hybrid.sizes.dim, layers = hybrid.sizes.layers;
  hybrid.attends = read_period(config, "attn_layer", 8, 4, layers);
  const int64_t hidden = config.integer("intermediate_size", 1, kWidest, 14336);
  const int64_t experts = config.integer("num_experts", 1, 65536, 16);
  const std::vector<bool> mixed = read_period(config, "expert_layer", 2, 1, layers);
  const int64_t mixtures = experts > 1 ? std::count(mixed.begin(), mixed.end(), true) : 0;
  config.fail_if(mixtures > 0 && mixtures < layers,
                 "\"expert_layer_period\": experts in some layers only are not supported");
  if (mixtures == 0) {
    hybrid.feed_forward = {{"type", "swiglu"}, {"dim", hidden}};
    hybrid.feed_forward_weights.gated("feed_forward", "feed_forward", dim, hidden);
  } else {
    hybrid.feed_forward = {{"type", "experts"},
                           {"dim", hidden},
                           {"experts", experts},
                           {"per_token", config.integer("num_experts_per_tok", 1, experts, 2)},
                           {"normalized", false}};
    hybrid.feed_forward_weights.linear("feed_forward.router", "feed_forward.router", experts, dim);
    hybrid.feed_forward_weights.experts("feed_forward.experts", {experts, dim, hidden});
  }
  return model_of(config, std::move(hybrid));
}

}  // namespace

std::vector<Architecture> mamba_hybrid_architectures() {
  return {{"bamba", read_bamba}, {"granitemoehybrid", read_granite_hybrid}, {"jamba", read_jamba}};
}

}  // namespace cortado
