#include "cortado/models/pretrained/architectures/layered.h"

#include <algorithm>
#include <utility>

#include "cortado/base/words.h"

namespace cortado {

RenamedFeedForward swiglu(const std::string& theirs, int64_t dim, int64_t hidden, bool bias, const GatedNames& names) {
  RenamedFeedForward read;
  read.settings = {{"type", "swiglu"}, {"dim", hidden}, {"bias", bias}};
  read.gated("feed_forward", theirs, dim, hidden, bias, names);
  return read;
}

LayeredModel read_layered(JsonReader& config, const LayeredDefaults& usual) {
  const ModelSizes sizes = read_sizes(config);
  expect_silu(config);
  Json json = config_of(sizes, config.boolean("tie_word_embeddings", usual.tied));
  json["norm_eps"] = config.number("rms_norm_eps", 0.0, 1.0, usual.norm_eps);
  json["context"] = config.integer("max_position_embeddings", 0, int64_t{1} << 40, usual.context);
  json["layers"] = Json::array();
  return {sizes, json};
}

void LayeredModel::add(const RenamedMixer& mixer, const std::string& their_mixer,
                       const RenamedFeedForward& feed_forward) {
  const auto layer = json["layers"].size();
  json["layers"].push_back({{"mixer", mixer.settings}, {"feed_forward", feed_forward.settings}});
  RenamedWeights block = feed_forward;
  block.norm("mixer_norm", mixer_norm, sizes.dim, zero_centred_norms);
  block.within("mixer", their_mixer, mixer);
  block.norm("feed_forward_norm", feed_forward_norm, sizes.dim, zero_centred_norms);
  layers.within(concat("layers.", layer), concat("model.layers.", layer), block);
}

RenamedModel LayeredModel::model(JsonReader& config) && {
  json["feed_forward"] = json["layers"].back()["feed_forward"];
  const ModelConfig read = ModelConfig::from_json(json, config.place());
  RenamedWeights weights = std::move(layers);
  weights.map("embedding.weight", "model.embed_tokens.weight", {sizes.vocabulary, sizes.dim});
  weights.norm("norm", concat("model.", last_norm), sizes.dim, zero_centred_norms);
  if (!read.tied) weights.map("head.weight", "lm_head.weight", {sizes.vocabulary, sizes.dim});
  return {{}, read, std::move(weights)};
}

Json read_grouped_experts(JsonReader& config, const ExpertSizes& sizes, const GroupedExperts& usual) {
  const int64_t groups = config.integer(spelled(config, {"num_expert_group", "n_group"}), 1, 65536, usual.groups);
  const char* per_token = spelled(config, {"num_experts_per_token", "num_experts_per_tok"});
  return {{"type", "experts"},
          {"dim", sizes.hidden},
          {"experts", sizes.count},
          {"scores", "sigmoid"},
          {"choice_bias", true},
          {"groups", groups},
          {"groups_per_token", config.integer("topk_group", 1, groups, usual.groups_per_token)},
          {"per_token", config.integer(per_token, 1, sizes.count, usual.per_token)},
          {"normalized", config.boolean(spelled(config, {"moe_renormalize", "norm_topk_prob"}), true)},
          {"scale", config.number("routed_scaling_factor", 1e-6, 1e6, usual.scale)},
          {"shared_gate", false}};
}

std::optional<std::vector<bool>> read_layer_types(JsonReader& config, int64_t layers,
                                                  const std::vector<std::string>& kind,
                                                  const std::vector<std::string>& other, const char* key) {
  const Json types = config.any(key);
  if (types.is_null()) return std::nullopt;
  std::vector<bool> read;
  const auto among = [](const std::vector<std::string>& names, const Json& type) {
    return std::any_of(names.begin(), names.end(), [&](const std::string& name) { return type == name; });
  };
  for (size_t i = 0; i < static_cast<size_t>(layers); ++i) {
    const Json type = types.is_array() && types.size() == static_cast<size_t>(layers) ? types[i] : Json();
    read.push_back(among(kind, type));
    config.fail_if(!read.back() && !among(other, type), "\"", key, "\" must name the types of ", layers,
                   " layers, each one of ", joined(kind, ", "), ", ", joined(other, ", "));
  }
  return read;
}

std::vector<bool> read_layer_numbers(JsonReader& config, const char* key, int64_t layers) {
  const Json numbers = config.any(key);
  std::vector<bool> read(layers);
  config.fail_if(!numbers.is_null() && !numbers.is_array(), "\"", key, "\" must be a list of layers, got ",
                 numbers.dump());
  for (const auto& [_, number] : numbers.items()) {
    config.fail_if(!number.is_number_integer() || number < 0 || number >= layers, "\"", key,
                   "\" must list layers, 0 to ", layers - 1, ", got ", numbers.dump());
    read[number.get<size_t>()] = true;
  }
  return read;
}

std::vector<bool> read_expert_layers(JsonReader& config, int64_t layers) {
  std::vector<bool> experts = read_layer_numbers(config, "mlp_only_layers", layers);
  const int64_t step = config.integer("decoder_sparse_step", 1, kDeepest, 1);
  for (int64_t i = 0; i < layers; ++i) experts[i] = !experts[i] && (i + 1) % step == 0;
  return experts;
}

}  // namespace cortado
