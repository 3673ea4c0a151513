// Kimi Linear of transformers, and as published: Kimi Delta Attention, multi-head latent attention without positions in
// every fourth layer, experts in all layers but the first ones.
#include "cortado/models/pretrained/architectures/layered.h"

namespace cortado {
namespace {

// The published configs have Kimi Delta Attention's settings in an object.
int64_t read_kda_size(JsonReader& config, const char* published, const char* key, int64_t most, int64_t usual) {
  const Json object = config.any("linear_attn_config");
  if (!object.is_object() || !object.contains(published)) return config.integer(key, 1, most, usual);
  JsonReader inner(object, config.place() + ".linear_attn_config");
  return inner.integer(published, 1, most);
}

RenamedMixer read_kimi_delta(JsonReader& config, int64_t dim, double norm_eps) {
  const int64_t heads = read_kda_size(config, "num_heads", "linear_num_heads", kMostHeads, 32);
  const int64_t head = read_kda_size(config, "head_dim", "linear_head_dim", 65536, 128);
  const int64_t taps = read_kda_size(config, "short_conv_kernel_size", "linear_conv_kernel_dim", 64, 4);
  const int64_t width = heads * head;
  RenamedMixer mixer({{"mixer", "kda"},
                      {"heads", heads},
                      {"head_dim", head},
                      {"taps", taps},
                      {"gate_rank", head},
                      {"output_gate", "sigmoid"},
                      {"norm_eps", norm_eps}});
  for (const char* name : {"q", "k", "v"}) mixer.linear(name, concat(name, "_proj"), width, dim);
  mixer.qkv_convolutions(width, width, taps);
  mixer.linear("beta", "b_proj", heads, dim);
  mixer.linear("gate_in", "g_a_proj", head, dim);
  mixer.linear("gate", "g_b_proj", width, head);
  mixer.linear("o", "o_proj", dim, width);
  mixer.norm("norm", "o_norm", head);
  // As published, and as transformers has them in memory.
  for (const char* place : {"", "forget_gate."}) {
    const auto add = [&](const char* ours, const char* theirs, const Shape& shape, const Shape& wanted) {
      mixer.or_map(ours, {concat(place, theirs), shape, [=](const Tensor& x) { return x.reshape(wanted); }});
    };
    add("decay_in.weight", "f_a_proj.weight", {head, dim}, {head, dim});
    add("decay.weight", "f_b_proj.weight", {width, head}, {width, head});
    add("a_log", "A_log", {1, 1, heads, 1}, {heads});
    add("dt_bias", "dt_bias", {width}, {heads, head});
  }
  return mixer;
}

RenamedMixer read_mla(JsonReader& config, int64_t dim) {
  const int64_t heads = config.integer("num_attention_heads", 1, kMostHeads, 32);
  const int64_t rank = config.integer("kv_lora_rank", 1, 65536, 512);
  const int64_t shared = config.integer("qk_rope_head_dim", 1, 65536, 64);
  const int64_t head = config.integer("qk_nope_head_dim", 1, 65536, 128);
  const int64_t value = config.integer("v_head_dim", 1, 65536, 128);
  const bool bias = config.boolean("attention_bias", false);
  expect(config, "num_key_value_heads", heads);
  expect(config, "mla_use_nope", true);
  RenamedMixer mixer({{"mixer", "mla"},
                      {"heads", heads},
                      {"rank", rank},
                      {"head_dim", head},
                      {"shared_dim", shared},
                      {"value_head_dim", value},
                      {"bias", bias},
                      {"norm_eps", 1e-6}});  // whatever the config's other norms have
  const int64_t queries = heads * (head + shared);
  if (config.has("q_lora_rank")) {
    const int64_t q_rank = config.integer("q_lora_rank", 1, 65536);
    mixer.settings["q_rank"] = q_rank;
    mixer.linear("q_down", "q_a_proj", q_rank, dim, bias);
    mixer.norm("q_norm", "q_a_layernorm", q_rank);
    mixer.linear("q", "q_b_proj", queries, q_rank);
  } else {
    mixer.linear("q", "q_proj", queries, dim);
  }
  mixer.linear("down", "kv_a_proj_with_mqa", rank + shared, dim, bias);
  mixer.norm("norm", "kv_a_layernorm", rank);
  for (const auto& [name, begin, size] : {std::tuple("k_up", int64_t{0}, head), std::tuple("v_up", head, value)}) {
    mixer.map(name, "kv_b_proj.weight", {heads * (head + value), rank},
              [=](const Tensor& x) { return x.view({heads, head + value, rank}).narrow(1, begin, size); });
  }
  mixer.linear("o", "o_proj", dim, heads * value, bias);
  return mixer;
}

// Whether each layer is softmax attention. The published configs count from 1.
std::vector<bool> read_kimi_attention_layers(JsonReader& config, int64_t layers) {
  if (const auto types = read_layer_types(config, layers, {"full_attention"}, {"linear_attention"})) return *types;
  std::vector<bool> attends(layers);
  const Json object = config.any("linear_attn_config");
  if (!object.is_object() || !object.contains("full_attn_layers")) {
    for (int64_t i = 4; i < layers; i += 4) attends[i] = true;
    return attends;
  }
  JsonReader inner(object, config.place() + ".linear_attn_config");
  std::vector<bool> from_one = read_layer_numbers(inner, "full_attn_layers", layers + 1);
  const std::vector<bool> others = read_layer_numbers(inner, "kda_layers", layers + 1);
  for (int64_t i = 0; i < layers; ++i) {
    attends[i] = from_one[i + 1];
    inner.fail_if(attends[i] == others[i + 1], "layer ", i + 1,
                  " must be in one of \"full_attn_layers\" and \"kda_layers\"");
  }
  return attends;
}

// Whether each layer has experts.
std::vector<bool> read_sparse_layers(JsonReader& config, int64_t layers) {
  expect(config, "moe_layer_freq", 1);
  const Json types = config.any("mlp_layer_types");
  std::vector<bool> sparse(layers);
  const int64_t first = config.integer("first_k_dense_replace", 0, kDeepest, 1);
  for (int64_t i = 0; i < layers; ++i) {
    const bool there = types.is_array() && std::ssize(types) == layers;
    const Json type = types.is_null() ? (i < first ? "dense" : "sparse") : there ? types[i] : Json();
    config.fail_if(type != "dense" && type != "sparse", "\"mlp_layer_types\" must name the types of ", layers,
                   " layers, each one dense or sparse");
    sparse[i] = type == "sparse";
  }
  return sparse;
}

RenamedFeedForward read_kimi_experts(JsonReader& config, int64_t dim) {
  const int64_t count = config.integer(spelled(config, {"num_experts", "num_local_experts"}), 1, 65536, 256);
  const int64_t hidden = config.integer("moe_intermediate_size", 1, kWidest, 1024);
  const int64_t shared = config.integer(spelled(config, {"num_shared_experts", "n_shared_experts"}), 1, 1024, 1);
  expect(config, "moe_router_activation_func", "sigmoid");
  expect(config, "use_grouped_topk", true);
  RenamedFeedForward read;
  read.settings = read_grouped_experts(config, {count, dim, hidden}, {.scale = 2.446});
  read.settings["shared"] = shared * hidden;
  read.linear("feed_forward.router", "mlp.gate", count, dim);
  read.map("feed_forward.choice_bias", "mlp.gate.e_score_correction_bias", {count});
  read.experts("mlp.experts", {count, dim, hidden}, {"w1", "w3", "w2"});
  read.gated("feed_forward.shared", "mlp.shared_experts", dim, shared * hidden);
  read.or_within("mlp.", "block_sparse_moe.");  // as published
  return read;
}

RenamedModel read_kimi_linear(JsonReader& config) {
  LayeredModel read = read_layered(config, {.norm_eps = 1e-5, .context = 1048576});
  const int64_t dim = read.sizes.dim, layers = read.sizes.layers;
  expect(config, "tie_word_embeddings", false);
  read.json["context"] =
      config.integer(spelled(config, {"model_max_length", "max_position_embeddings"}), 0, int64_t{1} << 40, 1048576);
  const RenamedMixer kda = read_kimi_delta(config, dim, read.norm_eps()), mla = read_mla(config, dim);
  const std::vector<bool> attends = read_kimi_attention_layers(config, layers),
                          sparse = read_sparse_layers(config, layers);
  RenamedFeedForward dense = swiglu("mlp", dim, config.integer("intermediate_size", 1, kWidest, 9216));
  dense.or_within("mlp.", "block_sparse_moe.");  // as transformers writes it again
  const RenamedFeedForward experts = read_kimi_experts(config, dim);
  for (int64_t i = 0; i < layers; ++i) {
    read.add(attends[i] ? mla : kda, "self_attn", sparse[i] ? experts : dense);
  }
  return std::move(read).model(config);
}

}  // namespace

std::vector<Architecture> kimi_linear_architectures() { return {{"kimi_linear", read_kimi_linear}}; }

}  // namespace cortado
