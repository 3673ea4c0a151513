// Llama 4 of transformers, its text part: three layers in four attend within blocks and have rotary positions and normed
// queries and keys, the others attend to everything without positions. Some layers or all have experts.
#include "cortado/models/pretrained/architectures/attention.h"
#include "cortado/models/pretrained/architectures/layered.h"
#include "cortado/models/pretrained/rope.h"

namespace cortado {
namespace {

// Theirs turns neighbours, ours halves: the rows of a head are 0, 2, 4, ..., 1, 3, 5, ... here.
void halve_rotations(RenamedMixer& mixer) {
  for (const auto& [name, heads] : {std::pair("q", "heads"), std::pair("k", "kv_heads")}) {
    const int64_t count = mixer.settings[heads], half = mixer.settings["head_dim"].get<int64_t>() / 2;
    for (const char* part : {".weight", ".bias"}) {
      mixer.then(name + std::string(part),
                 [=](const Tensor& x) { return x.unflatten(0, {count, half, 2}).transpose(1, 2).flatten(0, 2); });
    }
  }
}

// Their norm of queries and keys, after the rotation, has no weights. A rotation does not change it.
void add_bare_norms(RenamedMixer& mixer, double norm_eps, int64_t dim) {
  const int64_t head = mixer.settings["head_dim"];
  mixer.settings.update({{"qk_norm", true}, {"norm_eps", norm_eps}});
  for (const auto& [name, theirs, heads] : {std::tuple("q_norm.weight", "q_proj.weight", "heads"),
                                            std::tuple("k_norm.weight", "k_proj.weight", "kv_heads")}) {
    mixer.map(name, theirs, {mixer.settings[heads].get<int64_t>() * head, dim},
              [=](const Tensor& x) { return at::ones({head}, x.options()); });
  }
}

// Layers with rotary positions, and those without.
struct Llama4Attention {
  RenamedMixer turned, bare;
};

Llama4Attention read_llama4_attention(JsonReader& config, const LayeredModel& model) {
  const RenamedMixer usual = read_attention(config, model.sizes.dim, {.key_heads = 8, .head_dim = 128});
  Llama4Attention read{usual, usual};
  halve_rotations(read.turned);
  if (config.boolean("use_qk_norm", true)) add_bare_norms(read.turned, model.norm_eps(), model.sizes.dim);
  read.bare.settings["rotary"] = false;
  if (config.boolean("attn_temperature_tuning", true)) {
    read.bare.settings["temperature_period"] = config.integer("floor_scale", 1, int64_t{1} << 40, 8192);
    read.bare.settings["temperature_scale"] = config.number("attn_scale", 0.0, 1e3, 0.1);
  }
  return read;
}

// Makes the windows begin at multiples of their width.
RenamedMixer in_blocks(RenamedMixer mixer, int64_t size) {
  mixer.settings.update({{"mixer", "sliding_window"}, {"window", size}, {"aligned", true}});
  return mixer;
}

// Gate and up are joint, and map from the first dimension to the second.
RenamedFeedForward read_llama4_experts(JsonReader& config, int64_t dim) {
  const int64_t count = config.integer(spelled(config, {"num_local_experts", "num_experts"}), 1, 65536, 16);
  const int64_t hidden = config.integer("intermediate_size", 1, kWidest, 8192);
  RenamedFeedForward read;
  read.settings = {{"type", "experts"},   {"dim", hidden},
                   {"experts", count},    {"per_token", config.integer("num_experts_per_tok", 1, count, 1)},
                   {"normalized", false}, {"scores", "sigmoid"},
                   {"scale_input", true}, {"shared", hidden},
                   {"shared_gate", false}};
  read.linear("feed_forward.router", "feed_forward.router", count, dim);
  read.gated("feed_forward.shared", "feed_forward.shared_expert", dim, hidden);
  const std::string theirs = "feed_forward.experts.";
  for (int64_t i = 0; i < count; ++i) {
    const std::string ours = concat("feed_forward.experts.", i);
    const auto columns = [=](int64_t begin) { return [=](const Tensor& x) { return x.narrow(1, begin, hidden).t(); }; };
    read.or_map(ours + ".gate.weight", {theirs + "gate_up_proj", {count, dim, 2 * hidden}, columns(0), i});
    read.or_map(ours + ".up.weight", {theirs + "gate_up_proj", {count, dim, 2 * hidden}, columns(hidden), i});
    read.or_map(ours + ".down.weight",
                {theirs + "down_proj", {count, hidden, dim}, [](const Tensor& x) { return x.t(); }, i});
  }
  return read;
}

// Whether each layer has experts: those of "moe_layers", or every "interleave_moe_layer_step"-th.
std::vector<bool> read_llama4_expert_layers(JsonReader& config, int64_t layers) {
  if (config.says("moe_layers")) return read_layer_numbers(config, "moe_layers", layers);
  const int64_t step = config.integer("interleave_moe_layer_step", 1, kDeepest, 1);
  std::vector<bool> experts(layers);
  for (int64_t i = step - 1; i < layers; i += step) experts[i] = true;
  return experts;
}

// Whether each layer has rotary positions: 1 in "no_rope_layers", or all but every "no_rope_layer_interval"-th.
std::vector<bool> read_turned_layers(JsonReader& config, int64_t layers) {
  const Json list = config.any("no_rope_layers");
  const int64_t interval = config.integer("no_rope_layer_interval", 1, kDeepest, 4);
  std::vector<bool> turned(layers);
  if (list.is_null() || (list.is_array() && list.empty())) {
    for (int64_t i = 0; i < layers; ++i) turned[i] = (i + 1) % interval != 0;
    return turned;
  }
  config.fail_if(!list.is_array() || static_cast<int64_t>(list.size()) < layers,
                 "\"no_rope_layers\" must have a 1 or a 0 for each of ", layers, " layers");
  for (int64_t i = 0; i < layers; ++i) {
    config.fail_if(list[i] != 0 && list[i] != 1, "\"no_rope_layers\" must list ones and zeros, got ", list.dump());
    turned[i] = list[i] == 1;
  }
  return turned;
}

RenamedModel read_llama4_text(JsonReader& config) {
  LayeredModel read = read_layered(config, {.norm_eps = 1e-5, .context = 131072});
  const int64_t dim = read.sizes.dim, layers = read.sizes.layers;
  write_rope(read_whole_rope(config, 5e5), read.json);
  const Llama4Attention attention = read_llama4_attention(config, read);
  const int64_t block = config.integer("attention_chunk_size", 1, 1 << 30, 8192);
  const std::vector<bool> turned = read_turned_layers(config, layers),
                          mixed = read_llama4_expert_layers(config, layers);
  const std::vector<bool> blocks =
      read_layer_types(config, layers, {"chunked_attention"}, {"full_attention"}).value_or(turned);
  const RenamedFeedForward dense =
      swiglu("feed_forward", dim, config.integer("intermediate_size_mlp", 1, kWidest, 16384));
  const RenamedFeedForward experts = read_llama4_experts(config, dim);
  for (int64_t i = 0; i < layers; ++i) {
    const RenamedMixer& mixer = turned[i] ? attention.turned : attention.bare;
    read.add(blocks[i] ? in_blocks(mixer, block) : mixer, "self_attn", mixed[i] ? experts : dense);
  }
  return std::move(read).model(config);
}

// A model of images and texts, of which the text part is read.
RenamedModel read_llama4(JsonReader& config) {
  JsonReader text(config.object("text_config"), config.place() + ".text_config");
  expect(text, "model_type", "llama4_text");
  RenamedModel model = read_llama4_text(text);
  // As published, and as transformers 5 has it in memory.
  model.weights.or_within("lm_head.", "language_model.lm_head.");
  model.weights.or_within("model.", "language_model.model.");
  model.left_out = {"vision_model.", "multi_modal_projector."};
  return model;
}

}  // namespace

std::vector<Architecture> llama4_architectures() {
  return {{"llama4_text", read_llama4_text}, {"llama4", read_llama4}};
}

}  // namespace cortado
