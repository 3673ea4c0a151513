// Qwen3-Next and Qwen3.5 of transformers: Gated DeltaNet, softmax attention in every fourth layer, experts.
#include "cortado/models/pretrained/architectures/layered.h"
#include "cortado/models/pretrained/rope.h"

namespace cortado {
namespace {

// Selects rows begin .. begin + size - 1 of each of `groups` equal parts.
std::function<Tensor(const Tensor&)> rows_of(int64_t groups, int64_t begin, int64_t size) {
  return [=](const Tensor& x) { return x.unflatten(0, {groups, -1}).narrow(1, begin, size).flatten(0, 1); };
}

// How the models differ: the form of Gated DeltaNet's projections, and values that a config may omit.
struct QwenKind {
  bool split;  // q, k and v, the output gate, beta and the decay have maps of their own
  int64_t key_heads, hidden, experts, per_token;
};
constexpr QwenKind kQwen3Next = {false, 2, 5632, 512, 10}, kQwen35 = {true, 4, 12288, 0, 0},
                   kQwen35Experts = {true, 2, 5632, 256, 8};

// Gated DeltaNet's sizes: heads of q and k, heads of v, and the channels of each.
struct DeltaSizes {
  int64_t dim, key_heads, heads, head, value;

  int64_t keys() const { return key_heads * head; }
  int64_t values() const { return heads * value; }
};

DeltaSizes read_delta_sizes(JsonReader& config, int64_t dim) {
  const DeltaSizes sizes = {.dim = dim,
                            .key_heads = config.integer("linear_num_key_heads", 1, kMostHeads, 16),
                            .heads = config.integer("linear_num_value_heads", 1, kMostHeads, 32),
                            .head = config.integer("linear_key_head_dim", 1, 65536, 128),
                            .value = config.integer("linear_value_head_dim", 1, 65536, 128)};
  config.fail_if(sizes.heads % sizes.key_heads != 0, "linear_num_value_heads (", sizes.heads,
                 ") is not divisible by linear_num_key_heads (", sizes.key_heads, ")");
  return sizes;
}

// Maps q, k and v, whose rows follow one another in one tensor.
void map_qkv(RenamedMixer& mixer, const std::string& suffix, const std::string& theirs, const DeltaSizes& sizes,
             const Shape& row) {
  Shape shape = {2 * sizes.keys() + sizes.values()};
  shape.insert(shape.end(), row.begin(), row.end());
  int64_t begin = 0;
  for (const auto& [name, rows] :
       {std::pair("q", sizes.keys()), std::pair("k", sizes.keys()), std::pair("v", sizes.values())}) {
    mixer.map(name + suffix, theirs, shape, [=](const Tensor& x) { return x.narrow(0, begin, rows).flatten(1); });
    begin += rows;
  }
}

// Qwen3-Next: one map holds q, k, v and the output gate, another beta and the decay. Their rows are ordered by key
// head.
void map_joint_projections(RenamedMixer& mixer, const DeltaSizes& sizes) {
  const int64_t group = sizes.heads / sizes.key_heads, wide = group * sizes.value;
  const Shape joint = {2 * sizes.keys() + 2 * sizes.values(), sizes.dim}, gates = {2 * sizes.heads, sizes.dim};
  int64_t begin = 0;
  for (const auto& [name, rows] :
       {std::pair("q", sizes.head), std::pair("k", sizes.head), std::pair("v", wide), std::pair("gate", wide)}) {
    mixer.map(concat(name, ".weight"), "in_proj_qkvz.weight", joint, rows_of(sizes.key_heads, begin, rows));
    begin += rows;
  }
  mixer.map("beta.weight", "in_proj_ba.weight", gates, rows_of(sizes.key_heads, 0, group));
  mixer.map("decay.weight", "in_proj_ba.weight", gates, rows_of(sizes.key_heads, group, group));
}

RenamedMixer delta_net(JsonReader& config, int64_t dim, bool split) {
  const DeltaSizes sizes = read_delta_sizes(config, dim);
  const int64_t taps = config.integer("linear_conv_kernel_dim", 1, 64, 4);
  RenamedMixer mixer({{"mixer", "gated_delta_net"},
                      {"heads", sizes.heads},
                      {"key_heads", sizes.key_heads},
                      {"head_dim", sizes.head},
                      {"value_head_dim", sizes.value},
                      {"taps", taps},
                      {"output_gate", "silu"},
                      {"norm_eps", config.number("rms_norm_eps", 0.0, 1.0, 1e-6)}});
  if (split) {
    map_qkv(mixer, ".weight", "in_proj_qkv.weight", sizes, {dim});
    mixer.linear("gate", "in_proj_z", sizes.values(), dim);
    mixer.linear("beta", "in_proj_b", sizes.heads, dim);
    mixer.linear("decay", "in_proj_a", sizes.heads, dim);
  } else {
    map_joint_projections(mixer, sizes);
  }
  map_qkv(mixer, "_conv.weight", "conv1d.weight", sizes, {1, taps});
  mixer.map("a_log", "A_log", {sizes.heads});
  mixer.map("dt_bias", "dt_bias", {sizes.heads});
  mixer.norm("norm", "norm", sizes.value);
  mixer.linear("o", "out_proj", dim, sizes.values());
  return mixer;
}

// Each head's query and output gate are adjacent rows of one map.
RenamedMixer attention(JsonReader& config, int64_t dim, const QwenKind& kind) {
  const int64_t heads = config.integer("num_attention_heads", 1, kMostHeads, 16);
  const int64_t key_heads = config.integer("num_key_value_heads", 1, kMostHeads, kind.key_heads);
  const int64_t head = config.integer("head_dim", 1, 65536, 256);
  expect(config, "attention_bias", false);
  expect(config, "attn_output_gate", true);
  RenamedMixer mixer({{"mixer", "softmax"},
                      {"heads", heads},
                      {"kv_heads", key_heads},
                      {"head_dim", head},
                      {"rotary_fraction", read_rope(config, 0.25).fraction},
                      {"qk_norm", true},
                      {"norm_eps", config.number("rms_norm_eps", 0.0, 1.0, 1e-6)},
                      {"output_gate", true}});
  const Shape joint = {2 * heads * head, dim};
  mixer.map("q.weight", "q_proj.weight", joint, rows_of(heads, 0, head));
  mixer.map("gate.weight", "q_proj.weight", joint, rows_of(heads, head, head));
  for (const char* name : {"k", "v"}) mixer.linear(name, concat(name, "_proj"), key_heads * head, dim);
  mixer.linear("o", "o_proj", dim, heads * head);
  for (const char* name : {"q_norm", "k_norm"}) mixer.norm(name, name, head, /*zero_centred=*/true);
  return mixer;
}

// Whether the layer is softmax attention: by "layer_types", otherwise every "full_attention_interval"-th layer.
bool is_attention(JsonReader& config, int64_t layer) {
  const Json types = config.any("layer_types");
  const int64_t interval = config.integer("full_attention_interval", 1, kDeepest, 4);
  if (types.is_null()) return (layer + 1) % interval == 0;
  const bool there = types.is_array() && layer < static_cast<int64_t>(types.size()) && types[layer].is_string();
  const std::string type = there ? types[layer].get<std::string>() : "";
  // Later versions add the kind of linear attention; this model has one kind.
  config.fail_if(type != "full_attention" && type != "linear_attention" && !type.starts_with("linear_attention_"),
                 "\"layer_types\" must name each layer's, full_attention or linear_attention");
  return type == "full_attention";
}

RenamedFeedForward read_experts(JsonReader& config, int64_t dim, int64_t experts, const QwenKind& kind) {
  if (kind.split) expect(config, "norm_topk_prob", true);
  const int64_t hidden = config.integer("moe_intermediate_size", 1, kWidest, 512);
  const int64_t shared = config.integer("shared_expert_intermediate_size", 1, kWidest, 512);
  RenamedFeedForward read;
  read.linear("feed_forward.shared_gate", "mlp.shared_expert_gate", 1, dim);
  read.gated("feed_forward.shared", "mlp.shared_expert", dim, shared);
  read.linear("feed_forward.router", "mlp.gate", experts, dim);
  read.experts("mlp.experts", {experts, dim, hidden});
  read.settings = {{"type", "experts"},
                   {"dim", hidden},
                   {"experts", experts},
                   {"per_token", config.integer("num_experts_per_tok", 1, experts, std::min(kind.per_token, experts))},
                   {"normalized", config.boolean("norm_topk_prob", true)},
                   {"shared", shared}};
  return read;
}

// `tied`: the head is the embedding.
RenamedModel read_qwen(JsonReader& config, const QwenKind& kind, bool tied) {
  LayeredModel read = read_layered(config, {.context = 32768});
  const int64_t dim = read.sizes.dim, layers = read.sizes.layers;
  read.json["embedding"]["tied"] = tied;
  read.zero_centred_norms = true;
  write_rope(read_rope(config, 0.25), read.json);
  const RenamedMixer linear = delta_net(config, dim, kind.split), softmax = attention(config, dim, kind);
  const int64_t count = config.integer("num_experts", 0, 65536, kind.experts);
  const std::vector<bool> mixed = count > 0 ? read_expert_layers(config, layers) : std::vector<bool>(layers);
  const RenamedFeedForward dense = swiglu("mlp", dim, config.integer("intermediate_size", 1, kWidest, kind.hidden)),
                           experts = count > 0 ? read_experts(config, dim, count, kind) : RenamedFeedForward();
  for (int64_t i = 0; i < layers; ++i) {
    const bool full = is_attention(config, i);
    read.add(full ? softmax : linear, full ? "self_attn" : "linear_attn", mixed[i] ? experts : dense);
  }
  RenamedModel model = std::move(read).model(config);
  model.left_out = {"mtp."};  // the layers for multi-token prediction, which transformers omits too
  return model;
}

Architecture of_text(const std::string& type, const QwenKind& kind) {
  return {type, [kind](JsonReader& config) {
            RenamedModel model = read_qwen(config, kind, config.boolean("tie_word_embeddings", false));
            // A text model that was saved from a model of images and texts keeps the longer names.
            if (kind.split) model.weights.or_within("model.", "model.language_model.");
            return model;
          }};
}

// A model of images and texts, of which the text part is read.
Architecture of_images(const std::string& type, const QwenKind& kind) {
  return {type, [kind, type](JsonReader& config) {
            JsonReader text(config.object("text_config"), config.place() + ".text_config");
            expect(text, "model_type", type + "_text");
            const bool tied = text.boolean("tie_word_embeddings", false);
            RenamedModel model = read_qwen(text, kind, config.boolean("tie_word_embeddings", tied));
            model.weights.or_within("model.", "model.language_model.");
            model.left_out.emplace_back("model.visual.");
            return model;
          }};
}

}  // namespace

std::vector<Architecture> qwen3_next_architectures() {
  return {of_text("qwen3_next", kQwen3Next), of_text("qwen3_5_text", kQwen35),
          of_text("qwen3_5_moe_text", kQwen35Experts), of_images("qwen3_5", kQwen35),
          of_images("qwen3_5_moe", kQwen35Experts)};
}

}  // namespace cortado
