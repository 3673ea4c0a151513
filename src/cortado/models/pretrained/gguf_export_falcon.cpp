// GGUF files of Falcon-H1, which have no factors besides the weights. Ours go into the maps of the branches and into the
// embedding.
#include <cmath>

#include "cortado/models/pretrained/gguf_export_parts.h"

namespace cortado {
namespace {

// A layer's factors, and that of the residual stream, which is what the norms' epsilon says it is: a file has one
// epsilon for all norms, and a norm in Mamba-2 has that of the model's authors.
struct FalconFactors {
  double stream, queries, attention, recurrence;
};

FalconFactors read_falcon_factors(const Json& layer, double norm_eps) {
  const Json& attention = layer.at("attention");
  const double own = layer.at("recurrence").value("norm_eps", norm_eps);
  const double stream = norm_eps > 0 ? std::sqrt(own / norm_eps) : 1.0;
  const double usual = 1 / std::sqrt(attention.at("head_dim").get<double>());
  return {stream, attention.value("scale", usual) / usual, layer.value("attention_scale", 1.0) * stream,
          layer.value("recurrence_scale", 1.0) * stream};
}

// The factor of one of a layer's weights.
double factor_in_layer(const std::string& weight, const FalconFactors& by) {
  const auto in = [&](const char* module) { return weight.find(module) != std::string::npos; };
  if (in(".mixer.attention.q.")) return by.queries;
  if (in(".mixer.attention.o.")) return by.attention;
  if (in(".mixer.recurrence.out.")) return by.recurrence;
  return in(".feed_forward.down.") ? by.stream : 1.0;
}

// The model with its factors in the weights.
ModelConfig without_factors(const ModelConfig& ours, double norm_eps, bool tied) {
  ModelConfig plain = ours;
  plain.embedding_scale.reset();
  plain.norm_eps = norm_eps;
  plain.tied = tied;
  for (Json& layer : plain.layers) {
    layer["attention"]["scale"] = 1 / std::sqrt(layer["attention"].at("head_dim").get<double>());
    layer["attention_scale"] = layer["recurrence_scale"] = 1.0;
  }
  return plain;
}

void put_falcon_parts(RenamedFile& made, const Json& attention, const Json& mamba) {
  const int64_t head = attention.at("head_dim"), width = mamba.at("width");
  made.config.update({{"num_attention_heads", attention.at("heads")},
                      {"num_key_value_heads", attention.at("kv_heads")},
                      {"head_dim", head},
                      {"rope_theta", made.ours.rope_theta},
                      {"mamba_d_ssm", width},
                      {"mamba_n_heads", mamba.at("heads")},
                      {"mamba_n_groups", mamba.at("groups")},
                      {"mamba_d_state", mamba.at("state")},
                      {"mamba_d_conv", mamba.at("taps")},
                      {"mamba_rms_norm", mamba.value("norm", "after_gate") != "none"},
                      {"mamba_norm_before_gate", false},
                      {"mamba_conv_bias", mamba.at("conv_bias")}});
  made.file.put_head(head);
  made.file.put_whole("rope.dimension_count", head);
  made.file.put_number("rope.freq_base", made.ours.rope_theta);
  made.file.put_whole("ssm.inner_size", width);
}

}  // namespace

void describe_falcon_h1(RenamedFile& made) {
  const ModelConfig& ours = made.ours;
  std::vector<FalconFactors> factors;
  for (const Json& layer : ours.layers) factors.push_back(read_falcon_factors(layer, ours.norm_eps));
  const double stream = factors[0].stream, embedding = ours.embedding_scale.value_or(1.0) * stream;
  expect_in_llama_cpp(!ours.scaled_embedding, "embedding of falcon-h1 that is multiplied by its width");
  expect_in_llama_cpp(ours.rope_scaling.type == RotaryScaling::Type::kNone, "stretched positions in hybrids");
  put_falcon_parts(made, ours.layers[0].at("attention"), ours.layers[0].at("recurrence"));
  const double norm_eps = ours.norm_eps * stream * stream;
  const bool tied = ours.tied && embedding == 1;
  made.config.update({{"model_type", "falcon_h1"},
                      {"intermediate_size", ours.feed_forward.dim},
                      {"rms_norm_eps", norm_eps},
                      {"tie_word_embeddings", tied}});
  std::erase_if(made.file.settings, [](const auto& it) { return it.first.ends_with("layer_norm_rms_epsilon"); });
  made.file.put_number("attention.layer_norm_rms_epsilon", norm_eps);
  made.file.put_whole("feed_forward_length", ours.feed_forward.dim);
  made.put(kHeadNames);
  made.put(kMamba2PartNames);
  made.layout.groups = made.config["mamba_n_groups"];
  made.layout.bare_norm = true;
  made.plain = without_factors(ours, norm_eps, tied);
  made.factor = [=](const std::string& weight) {
    if (weight == "embedding.weight") return embedding;
    return weight.starts_with("layers.") ? factor_in_layer(weight, factors[std::stoull(weight.substr(7))]) : 1.0;
  };
}

}  // namespace cortado
