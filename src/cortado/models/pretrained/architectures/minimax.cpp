// MiniMax-01 of transformers: lightning attention, softmax attention in some layers, experts. Its residual stream is the
// norms' output.
#include "cortado/models/pretrained/architectures/attention.h"
#include "cortado/models/pretrained/architectures/layered.h"
#include "cortado/models/pretrained/rope.h"

namespace cortado {
namespace {

// Factors of the stream and of a branch where they are added. Norms do not see a factor of their input, but for their
// epsilon, so that here the branch is multiplied by branch / stream, and the epsilon is divided by stream².
struct MinimaxFactors {
  double stream, full, linear, experts;  // the last three: branch / stream
};

MinimaxFactors read_minimax_factors(JsonReader& config) {
  const auto factor = [&](const std::string& name) { return config.number(name, 1e-3, 1e3, 1.0); };
  const double stream = factor("mlp_alpha_factor");
  for (const char* other : {"full_attn_alpha_factor", "linear_attn_alpha_factor"}) {
    config.fail_if(factor(other) != stream, "\"", other, "\" other than \"mlp_alpha_factor\" is not supported");
  }
  return {stream, factor("full_attn_beta_factor") / stream, factor("linear_attn_beta_factor") / stream,
          factor("mlp_beta_factor") / stream};
}

// Multiplies the branch. The product is kept in float32, because 16 bits would round it.
void multiply(RenamedMixer& mixer, const char* weight, double factor) {
  if (factor != 1) mixer.then(weight, [=](const Tensor& x) { return x.to(at::kFloat) * factor; });
}

// "rotary_dim": how many of a head's channels are turned, the first ones, as in MiniMax's own program and as transformers
// reads it of MiniMax-M2. (Its class of MiniMax-01 ignores it.)
void read_rotary_channels(JsonReader& config, RenamedMixer& attention) {
  const int64_t head = attention.settings["head_dim"], turned = config.integer("rotary_dim", 2, head, head);
  config.fail_if(turned % 2 != 0, "\"rotary_dim\" (", turned, ") is odd: channels are turned in pairs");
  if (turned < head) attention.settings["rotary_fraction"] = static_cast<double>(turned) / static_cast<double>(head);
}

RenamedMixer lightning_mixer(int64_t dim, const RenamedMixer& attention, double factor) {
  const int64_t heads = attention.settings["heads"], head = attention.settings["head_dim"], width = heads * head;
  RenamedMixer mixer({{"mixer", "lightning"},
                      {"heads", heads},
                      {"key_dim", width},
                      {"value_dim", width},
                      {"norm_eps", 1e-6}});  // whatever the config's other norms have
  // The rows of q, k and v of a head follow one another.
  for (const auto& [name, part] : {std::pair("q", 0), std::pair("k", 1), std::pair("v", 2)}) {
    mixer.map(concat(name, ".weight"), "qkv_proj.weight", {3 * width, dim},
              [=](const Tensor& x) { return x.view({heads, 3, head, dim}).select(1, part).flatten(0, 1); });
  }
  mixer.linear("g", "output_gate", width, dim);
  mixer.norm("norm", "norm", width);
  mixer.linear("o", "out_proj", dim, width);
  multiply(mixer, "norm.weight", factor);
  return mixer;
}

RenamedFeedForward read_minimax_experts(JsonReader& config, int64_t dim, double factor) {
  const int64_t count = config.integer(spelled(config, {"num_local_experts", "num_experts"}), 1, 65536, 8);
  const int64_t hidden = config.integer("intermediate_size", 1, kWidest, 14336);
  RenamedFeedForward read;
  read.settings = {{"type", "experts"},
                   {"dim", hidden},
                   {"experts", count},
                   {"per_token", config.integer("num_experts_per_tok", 1, count, std::min<int64_t>(2, count))},
                   {"scale", factor}};
  read.linear("feed_forward.router", "mlp.gate", count, dim);
  read.experts("mlp.experts", {count, dim, hidden}, {"w1", "w3", "w2"});
  read.or_within("mlp.", "block_sparse_moe.");  // as published
  return read;
}

RenamedModel read_minimax(JsonReader& config) {
  LayeredModel read = read_layered(config, {.norm_eps = 1e-5, .context = 131072});
  const int64_t dim = read.sizes.dim, layers = read.sizes.layers;
  expect(config, "sliding_window", Json());
  const MinimaxFactors factors = read_minimax_factors(config);
  const PretrainedRope rope = read_rope(config, 1.0, 1e6);
  write_rope(rope, read.json);
  RenamedMixer attention = read_attention(config, dim, {.key_heads = 8});
  read_rotary_channels(config, attention);
  const RenamedMixer lightning = lightning_mixer(dim, attention, factors.linear);
  if (rope.fraction != 1) attention.settings["rotary_fraction"] = rope.fraction;
  multiply(attention, "o.weight", factors.full);
  const double eps = read.norm_eps() / (factors.stream * factors.stream);
  config.fail_if(eps > 1, "\"mlp_alpha_factor\" ", factors.stream, " is too small");
  read.json["norm_eps"] = eps;
  read.json["normed_residual"] = true;
  if (factors.stream != 1) read.json["embedding"]["scale"] = 1 / factors.stream;
  const RenamedFeedForward experts = read_minimax_experts(config, dim, factors.experts);
  std::vector<bool> attends(layers);
  for (int64_t i = 0; i < layers; i += 2) attends[i] = true;
  attends = read_layer_types(config, layers, {"full_attention"}, {"linear_attention"}).value_or(attends);
  for (const bool full : attends) read.add(full ? attention : lightning, "self_attn", experts);
  RenamedModel model = std::move(read).model(config);
  // Decays, which follow from the number of heads and layers.
  for (int64_t i = 0; i < layers; ++i) {
    for (const char* name : {"slope_rate", "query_decay", "key_decay", "diagonal_decay"}) {
      if (!attends[i]) model.idle.push_back(concat("model.layers.", i, ".self_attn.", name));
    }
  }
  return model;
}

}  // namespace

std::vector<Architecture> minimax_architectures() { return {{"minimax", read_minimax}}; }

}  // namespace cortado
