// RWKV-4 of transformers: time mixing and channel mixing alternate, each as one layer here.
#include "cortado/models/pretrained/renamed.h"

namespace cortado {
namespace {

Tensor flat(const Tensor& x) { return x.flatten(); }

// Weights of a LayerNorm with bias.
void map_layer_norm(RenamedWeights& weights, const std::string& ours, const std::string& theirs, int64_t dim) {
  for (const char* part : {".weight", ".bias"}) weights.map(ours + part, theirs + part, {dim});
}

RenamedMixer time_mixing(int64_t dim, int64_t width) {
  RenamedMixer mixer({{"mixer", "rwkv4"}, {"width", width}});
  for (const auto& [ours, theirs] : {std::pair("k", "key"), std::pair("v", "value"), std::pair("r", "receptance")}) {
    mixer.linear(ours, theirs, width, dim);
    mixer.map(concat("mix_", ours), concat("time_mix_", theirs), {1, 1, dim}, flat);
  }
  mixer.map("decay", "time_decay", {width});
  mixer.map("bonus", "time_first", {width});
  mixer.linear("o", "output", dim, width);
  return mixer;
}

RenamedMixer channel_mixing(int64_t dim, int64_t hidden) {
  RenamedMixer mixer({{"mixer", "rwkv4_channel_mix"}, {"hidden", hidden}});
  mixer.linear("k", "key", hidden, dim);
  mixer.linear("r", "receptance", dim, dim);
  mixer.linear("v", "value", dim, hidden);
  mixer.map("mix_k", "time_mix_key", {1, 1, dim}, flat);
  mixer.map("mix_r", "time_mix_receptance", {1, 1, dim}, flat);
  return mixer;
}

int64_t width_of(JsonReader& config, const char* key, int64_t usual) {
  return config.any(key).is_null() ? usual : config.integer(key, 1, kWidest);
}

// "rescale_every" halves values that 16 bits could not represent, and the norms undo it. It is ignored here.
RenamedModel read_rwkv(JsonReader& config) {
  const ModelSizes sizes = read_sizes(config);
  const int64_t dim = sizes.dim, width = width_of(config, "attention_hidden_size", dim);
  const int64_t hidden = width_of(config, "intermediate_size", 4 * dim);
  const bool tied = config.boolean("tie_word_embeddings", false);
  const RenamedMixer time = time_mixing(dim, width), channel = channel_mixing(dim, hidden);
  Json json = config_of(sizes, tied);
  json["norm"] = "layer";
  expect(config, "layer_norm_epsilon", 1e-5);  // their last norm always has this epsilon, whatever the config says
  json["norm_eps"] = 1e-5;
  json["context"] = config.integer("context_length", 0, int64_t{1} << 40, 1024);
  json["feed_forward"] = {{"type", "none"}};
  json["embedding"]["norm"] = true;
  json["layers"] = {{{"mixer", time.settings}}, {{"mixer", channel.settings}}};
  json["repeat_layers"] = sizes.layers;
  RenamedModel model{{}, ModelConfig::from_json(json, config.place()), {}};
  RenamedWeights& weights = model.weights;
  weights.map("embedding.weight", "rwkv.embeddings.weight", {sizes.vocabulary, dim});
  map_layer_norm(weights, "embedding_norm", "rwkv.blocks.0.pre_ln", dim);
  for (int64_t i = 0; i < sizes.layers; ++i) {
    const std::string block = concat("rwkv.blocks.", i), first = concat("layers.", 2 * i),
                      second = concat("layers.", 2 * i + 1);
    map_layer_norm(weights, first + ".mixer_norm", block + ".ln1", dim);
    weights.within(first + ".mixer", block + ".attention", time);
    map_layer_norm(weights, second + ".mixer_norm", block + ".ln2", dim);
    weights.within(second + ".mixer", block + ".feed_forward", channel);
  }
  map_layer_norm(weights, "norm", "rwkv.ln_out", dim);
  if (tied) {
    model.idle = {"head.weight"};
  } else {
    weights.map("head.weight", "head.weight", {sizes.vocabulary, dim});
  }
  return model;
}

}  // namespace

std::vector<Architecture> rwkv_architectures() { return {{"rwkv", read_rwkv}}; }

}  // namespace cortado
