// Bamba, Granite 4 (granitemoehybrid) and Jamba of transformers: Mamba-2 or, in Jamba, Mamba in most layers, softmax
// attention in the others.
#include "cortado/models/pretrained/architectures/attention.h"
#include "cortado/models/pretrained/architectures/layered.h"
#include "cortado/models/pretrained/architectures/mamba.h"
#include "cortado/models/pretrained/rope.h"

namespace cortado {
namespace {

// What the readers below have read of a hybrid's config.
struct Hybrid {
  LayeredModel model;
  RenamedMixer recurrence, attention;
  std::vector<bool> attends = {};  // per layer: softmax attention

  int64_t dim() const { return model.sizes.dim; }
  int64_t layers() const { return model.sizes.layers; }
  void add(int64_t layer, const RenamedFeedForward& feed_forward) {
    model.add(attends[layer] ? attention : recurrence, attends[layer] ? "self_attn" : "mamba", feed_forward);
  }
  RenamedModel with(const RenamedFeedForward& feed_forward, JsonReader& config) && {
    for (int64_t i = 0; i < layers(); ++i) add(i, feed_forward);
    return std::move(model).model(config);
  }
};

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
  write_rope(rope, hybrid.model.json);
  if (rope.fraction != 1) hybrid.attention.settings["rotary_fraction"] = rope.fraction;
}

// Reads what all hybrids' configs say with the same keys. `read_recurrence` gets the epsilon of the norms.
Hybrid read_hybrid(JsonReader& config, const LayeredDefaults& usual, const AttentionDefaults& attention,
                   RenamedMixer (*read_recurrence)(JsonReader&, int64_t dim, double norm_eps)) {
  LayeredModel model = read_layered(config, usual);
  model.feed_forward_norm = "pre_ff_layernorm";
  model.last_norm = "final_layernorm";
  const int64_t dim = model.sizes.dim;
  return {model, read_recurrence(config, dim, model.norm_eps()), read_attention(config, dim, attention)};
}

RenamedModel read_bamba(JsonReader& config) {
  Hybrid hybrid = read_hybrid(config, {.norm_eps = 1e-5, .context = 262144}, {.key_heads = 8}, read_mamba2_part);
  read_rotary(config, 0.5, hybrid);
  hybrid.attends = read_layer_numbers(config, "attn_layer_indices", hybrid.layers());
  const int64_t hidden = config.integer("intermediate_size", 1, kWidest, 14336);
  const RenamedFeedForward dense = swiglu("feed_forward", hybrid.dim(), hidden, config.boolean("mlp_bias", false));
  return std::move(hybrid).with(dense, config);
}

// Experts and a shared one without a gate; or, without experts, the shared one alone.
RenamedFeedForward read_granite_feed_forward(JsonReader& config, int64_t dim) {
  const int64_t experts = config.integer("num_local_experts", 0, 65536, 8);
  const int64_t shared = config.integer("shared_intermediate_size", 1, kWidest, 1024);
  RenamedFeedForward read;
  read.gated_joint(experts > 0 ? "feed_forward.shared" : "feed_forward", "shared_mlp.input_linear.weight",
                   "shared_mlp.output_linear.weight", dim, shared);
  read.settings = {{"type", "swiglu"}, {"dim", shared}};
  if (experts == 0) return read;
  const int64_t hidden = config.integer("intermediate_size", 1, kWidest, 11008);
  read.settings = {{"type", "experts"},
                   {"dim", hidden},
                   {"experts", experts},
                   {"per_token", config.integer("num_experts_per_tok", 1, experts, std::min<int64_t>(2, experts))},
                   {"shared", shared},
                   {"shared_gate", false}};
  // As published, and as transformers 5 has them in memory.
  read.map("feed_forward.router.weight", "block_sparse_moe.router.layer.weight", {experts, dim});
  read.or_map("feed_forward.router.weight", {"block_sparse_moe.router.weight", {experts, dim}});
  read.joint_experts("block_sparse_moe.input_linear.weight", "block_sparse_moe.output_linear.weight",
                     {experts, dim, hidden});
  read.joint_experts("block_sparse_moe.experts.gate_up_proj", "block_sparse_moe.experts.down_proj",
                     {experts, dim, hidden});
  return read;
}

// Granite's block is x += m f(norm x). Here the stream is x / m: the embedding's multiplier is divided by m, and the
// epsilon of the norms, which do not see a factor of their input, by m². Returns what divides the logits.
double read_multipliers(JsonReader& config, Hybrid& hybrid) {
  const double residual = config.number("residual_multiplier", 1e-3, 1e3, 1.0);
  const double embedding = config.number("embedding_multiplier", 1e-3, 1e3, 1.0);
  const double eps = hybrid.model.norm_eps() / (residual * residual);
  config.fail_if(eps > 1, "\"residual_multiplier\" ", residual, " is too small");
  hybrid.model.json["norm_eps"] = eps;
  if (embedding != residual) hybrid.model.json["embedding"]["scale"] = embedding / residual;
  hybrid.attention.settings["scale"] = config.number("attention_multiplier", 1e-6, 1e6, 1.0);
  return config.number("logits_scaling", 1e-6, 1e6, 1.0);
}

RenamedModel read_granite_hybrid(JsonReader& config) {
  Hybrid hybrid = read_hybrid(config, {.norm_eps = 1e-6, .context = 2048}, {}, read_mamba2_part);
  expect(config, "normalization_function", "rmsnorm");
  const double divisor = read_multipliers(config, hybrid);
  const std::string positions = config.text("position_embedding_type", "nope");
  config.fail_if(positions != "nope" && positions != "rope", "\"position_embedding_type\": \"", positions,
                 "\" is not supported, only \"rope\" and \"nope\"");
  if (positions == "rope") read_rotary(config, 1.0, hybrid);
  // As published, and as transformers 5 calls them.
  hybrid.attends =
      read_layer_types(config, hybrid.layers(), {"attention", "full_attention"}, {"mamba", "linear_attention"})
          .value_or(std::vector<bool>(hybrid.layers()));
  hybrid.model.feed_forward_norm = "post_attention_layernorm";
  hybrid.model.last_norm = "norm";
  const RenamedFeedForward feed_forward = read_granite_feed_forward(config, hybrid.dim());
  RenamedModel model = std::move(hybrid).with(feed_forward, config);
  // The last norm's weights divide the logits. They are kept in float32, because 16 bits would round them.
  if (divisor != 1) {
    model.weights.then("norm.weight", [=](const Tensor& x) { return x.to(at::kFloat) / divisor; });
  }
  return model;
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

RenamedFeedForward read_jamba_experts(JsonReader& config, int64_t dim, int64_t hidden, int64_t experts) {
  RenamedFeedForward read;
  read.settings = {{"type", "experts"},
                   {"dim", hidden},
                   {"experts", experts},
                   {"per_token", config.integer("num_experts_per_tok", 1, experts, 2)},
                   {"normalized", false}};
  read.linear("feed_forward.router", "feed_forward.router", experts, dim);
  read.experts("feed_forward.experts", {experts, dim, hidden});
  return read;
}

RenamedModel read_jamba(JsonReader& config) {
  Hybrid hybrid = read_hybrid(config, {.context = 262144}, {.key_heads = 8}, read_mamba_part);
  const int64_t dim = hybrid.dim(), layers = hybrid.layers();
  hybrid.attends = read_period(config, "attn_layer", 8, 4, layers);
  const int64_t hidden = config.integer("intermediate_size", 1, kWidest, 14336);
  const int64_t count = config.integer("num_experts", 1, 65536, 16);
  const std::vector<bool> mixed = read_period(config, "expert_layer", 2, 1, layers);
  const RenamedFeedForward dense = swiglu("feed_forward", dim, hidden),
                           experts = count > 1 ? read_jamba_experts(config, dim, hidden, count) : dense;
  for (int64_t i = 0; i < layers; ++i) hybrid.add(i, mixed[i] ? experts : dense);
  return std::move(hybrid.model).model(config);
}

}  // namespace

std::vector<Architecture> mamba_hybrid_architectures() {
  return {{"bamba", read_bamba}, {"granitemoehybrid", read_granite_hybrid}, {"jamba", read_jamba}};
}

}  // namespace cortado
