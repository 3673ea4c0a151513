// GGUF files of the models that renamed.h reads. One of our models is described as a folder's config; the reader of
// such folders must then give the model back, and the tensors are those of its weights, moved the other way.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "cortado/models/pretrained/gguf_export_parts.h"

namespace cortado {
namespace {

// Granite's blocks are multiplied by a factor, which is in our norms' epsilon (mamba_hybrids.cpp). That of Mamba-2's own
// norms tells the factor. MiniMax-01's stream is, and the embedding tells its factor.
double own_epsilon(const ModelConfig& ours, const std::string& architecture) {
  if (architecture == "minimax-01") return ours.norm_eps / std::pow(ours.embedding_scale.value_or(1), 2);
  return architecture == "granitehybrid" ? layer_of(ours, "mamba2").value("norm_eps", 1e-5) : ours.norm_eps;
}

// What all files say.
void put_shared(RenamedFile& made) {
  const ModelConfig& ours = made.ours;
  const double norm_eps = own_epsilon(ours, made.file.architecture);
  made.config.update({{"vocab_size", ours.vocabulary},
                      {"hidden_size", ours.dim},
                      {"num_hidden_layers", ours.layers.size()},
                      {"tie_word_embeddings", ours.tied},
                      {"rms_norm_eps", norm_eps},
                      {"layer_norm_epsilon", norm_eps},
                      {"norm_eps", norm_eps},
                      {"max_position_embeddings", ours.context}});
  made.file.put_sizes(ours, norm_eps);
}

// An architecture that is written, by the kinds of its layers. `experts`: with or without; nullopt: both.
struct WrittenArchitecture {
  const char* name;
  std::set<std::string> mixers;
  std::optional<bool> experts;
  void (*describe)(RenamedFile& made);
  bool gated = true;  // the feed-forwards
};

const std::vector<WrittenArchitecture>& written_architectures() {
  static const std::vector<WrittenArchitecture> all = {
      {"mamba", {"mamba"}, false, describe_mamba},
      {"mamba2", {"mamba2"}, false, describe_mamba2},
      {"jamba", {"mamba", "softmax"}, {}, describe_jamba},
      {"lfm2", {"gated_short_conv", "softmax"}, false, describe_lfm2},
      {"nemotron_h", {"mamba2", "softmax"}, false, describe_nemotron_h, /*gated=*/false},
      {"nemotron_h_moe", {"mamba2", "softmax"}, true, describe_nemotron_h, /*gated=*/false},
      {"granitehybrid", {"mamba2", "softmax"}, {}, describe_granite_hybrid},
      {"falcon-h1", {"parallel_hybrid"}, false, describe_falcon_h1},
      {"kimi-linear", {"kda", "mla"}, {}, describe_kimi_linear},
      {"minimax-01", {"lightning", "softmax"}, true, describe_minimax},
      {"gpt-oss", {"softmax", "sliding_window"}, true, describe_gpt_oss},
      {"olmo2", {"softmax"}, false, describe_olmo2},
      {"olmo2", {"softmax", "sliding_window"}, false, describe_olmo3},
      {"qwen3moe", {"softmax"}, true, describe_qwen3_moe},
      {"qwen35", {"gated_delta_net", "softmax"}, false, describe_qwen3_5},
      {"qwen35moe", {"gated_delta_net", "softmax"}, true, describe_qwen3_5},
      {"rwkv6", {"rwkv6", "rwkv4_channel_mix"}, false, describe_rwkv6},
      {"rwkv7", {"rwkv7", "rwkv7_channel_mix"}, false, describe_rwkv7}};
  return all;
}

const WrittenArchitecture& architecture_for(const ModelConfig& config) {
  std::set<std::string> mixers, known;
  for (const Json& layer : config.layers) mixers.insert(layer["mixer"].get<std::string>());
  const bool experts = config.feed_forward.kind == FeedForwardKind::kExperts;
  const bool gated = experts ? config.feed_forward.experts.gated : config.feed_forward.kind != FeedForwardKind::kMlp;
  for (const WrittenArchitecture& it : written_architectures()) {
    const bool other = !it.gated && gated;
    if (it.mixers == mixers && it.experts.value_or(experts) == experts && !other) return it;
    known.insert(it.mixers.begin(), it.mixers.end());
  }
  std::string list;
  for (const std::string& mixer : mixers) {
    expect_in_llama_cpp(known.contains(mixer), concat("architecture with layers of ", mixer));
    list += concat(list.empty() ? "" : " and ", mixer);
  }
  expect_in_llama_cpp(false, concat("model with layers of ", list, experts ? " and experts" : ""));
  return written_architectures().front();
}

// Whether two settings are equal, numbers up to the rounding of a file's.
bool is_equal(const Json& a, const Json& b) {
  if (!a.is_number() || !b.is_number()) return a == b;
  return std::abs(a.get<double>() - b.get<double>()) <= 1e-6 * std::abs(a.get<double>());
}

// Whether two objects are equal, and all objects in them.
bool is_equal_object(const Json& a, const Json& b) {
  if (!a.is_object() || !b.is_object() || a.size() != b.size()) return is_equal(a, b);
  return std::ranges::all_of(
      a.items(), [&](const auto& it) { return b.contains(it.key()) && is_equal_object(it.value(), b[it.key()]); });
}

// The epsilon of the norms in a mixer that does not say it.
double usual_epsilon(const Json& layer) {
  if (layer["mixer"] == "rwkv6" || layer["mixer"] == "rwkv7") return kRwkvHeadNormEps;
  return layer["mixer"] == "mamba2" || layer["mixer"] == "gated_delta_net" ? 1e-5 : 1e-6;
}

// Throws InputError unless what the file says is our model.
void expect_same(const ModelConfig& ours, const ModelConfig& file, const std::string& architecture) {
  const auto refuse = [&](const std::string& key, const Json& value) {
    fail_input_if(true, "[export] llama.cpp's ", architecture, " has no \"", key, "\": ", value.dump());
  };
  Json wanted = ours.to_json(), found = file.to_json();
  for (const char* key :
       {"name", "context", "dropout", "initialization", "task", "training", "heads", "layers", "mixer"}) {
    wanted.erase(key);
    found.erase(key);
  }
  for (const auto& [key, value] : wanted.items()) {
    if (!found.contains(key) || !is_equal_object(value, found[key])) refuse(key, value);
  }
  if (ours.changes != file.changes) refuse("layers", "norms or feed-forwards that differ");
  for (size_t i = 0; i < ours.layers.size(); ++i) {
    for (const auto& [key, value] : ours.layers[i].items()) {
      if (!file.layers[i].contains(key) || !is_equal_object(value, file.layers[i][key])) refuse(key, value);
    }
    for (const auto& [key, value] : file.layers[i].items()) {
      if (ours.layers[i].contains(key)) continue;
      if (value == true && key != "conv_bias") refuse(key, false);
      if (key == "norm_eps" && !is_equal(value, usual_epsilon(ours.layers[i])))
        refuse(key, usual_epsilon(ours.layers[i]));
    }
  }
}

struct Part {
  std::string ours;
  TheirTensor form;
  double factor;  // of our numbers
};

// Moves our weights to where a file's tensor has them. What `change` does to the numbers of places says where.
Tensor assemble(const std::vector<int64_t>& shape, const std::vector<Part>& parts, const ModelWeights& weights) {
  Tensor whole = at::empty(shape, at::kFloat);
  for (const auto& [name, form, factor] : parts) {
    // The head of a model whose embedding it is, which a factor tells apart in the file.
    const Tensor& weight = weights[weights.contains(name) ? name : "embedding.weight"];
    const Tensor plain = form.value ? form.value->theirs(weight) : weight.to(at::kFloat);
    const Tensor ours = factor == 1 ? plain : plain * factor;
    const Tensor target = form.index ? whole.select(0, *form.index) : whole;
    if (!form.change) {
      target.copy_(ours);
      continue;
    }
    const Tensor places = form.change(at::arange(target.numel(), at::kLong).reshape(target.sizes()));
    target.view(-1).index_put_({places.reshape(-1)}, ours.reshape(-1));
  }
  return whole;
}

// FalconMamba's norms of what it selects have no weights, which ours must not have learned.
bool is_unit_norm(const Part& part) {
  return part.form.name.ends_with("ssm_x.weight") && part.ours.ends_with("norm.weight");
}

void add_weights(const RenamedWeights& list, RenamedFile& made) {
  std::vector<std::string> order;
  std::map<std::string, std::vector<Part>> tensors;
  for (const RenamedWeight& weight : list.list) {
    const TheirTensor& form = weight.forms.front();
    if (!tensors.contains(form.name)) order.push_back(form.name);
    tensors[form.name].push_back({weight.ours, form, made.factor ? made.factor(weight.ours) : 1.0});
  }
  for (const std::string& name : order) {
    std::vector<Part> parts = tensors[name], units;
    std::ranges::copy_if(parts, std::back_inserter(units), is_unit_norm);
    std::erase_if(parts, is_unit_norm);
    const Shape shape = parts.front().form.shape;
    made.file.tensors.push_back({name, shape, [=](const ModelWeights& weights) {
                                   for (const Part& unit : units)
                                     expect_in_llama_cpp(
                                         (weights[unit.ours] == 1).all().item<bool>(),
                                         concat("weights of norms in mamba layers, but ", unit.ours, " learned"));
                                   return assemble(shape, parts, weights);
                                 }});
  }
}

}  // namespace

// The attention of hybrids.
void put_attention(RenamedFile& made) {
  const Json& mixer = layer_of(made.ours, "softmax");
  const int64_t heads = whole_of(mixer, "heads", made.ours.heads), keys = whole_of(mixer, "kv_heads", heads);
  const int64_t head = whole_of(mixer, "head_dim", std::max<int64_t>(1, made.ours.dim / heads));
  made.config.update({{"num_attention_heads", heads}, {"num_key_value_heads", keys}, {"head_dim", head}});
  made.file.put_head(head);
}

void expect_whole_width(const RenamedFile& made) {
  const int64_t width =
      made.config.at("num_attention_heads").get<int64_t>() * made.config.at("head_dim").get<int64_t>();
  expect_in_llama_cpp(width == made.ours.dim,
                      concat("attention in ", made.file.architecture, " whose heads together are ", width,
                             " channels wide, not ", made.ours.dim));
}

void put_rope_of(RenamedFile& made) {
  const ModelConfig& ours = made.ours;
  expect_in_llama_cpp(ours.rope_scaling.type == RotaryScaling::Type::kNone, "stretched positions in hybrids");
  const double fraction = layer_of(ours, "softmax").value("rotary_fraction", 1.0);
  made.config.update({{"rope_theta", ours.rope_theta}, {"partial_rotary_factor", fraction}});
  made.file.put_number("rope.freq_base", ours.rope_theta);
  made.file.put_whole("rope.dimension_count", static_cast<int64_t>(fraction * made.config["head_dim"].get<double>()));
}

// The layers of hybrids without key heads are recurrent.
void put_hybrid_heads(RenamedFile& made) {
  made.file.put_whole("attention.head_count", made.config["num_attention_heads"].get<int64_t>());
  made.file.put("attention.head_count_kv", per_layer(made.ours, made.config["num_key_value_heads"].get<int64_t>(), 0));
}

GgufModel gguf_renamed_model(const ModelConfig& config) {
  const WrittenArchitecture& architecture = architecture_for(config);
  RenamedFile made{config, {architecture.name}};
  put_shared(made);
  architecture.describe(made);
  made.file.put_whole("block_count", made.config["num_hidden_layers"].get<int64_t>());
  const RenamedModel folder = gguf_folder_model(made.config, made.layout, concat("llama.cpp's ", architecture.name));
  expect_same(made.plain.value_or(config), folder.config, architecture.name);
  add_weights(gguf_weights(folder, made.layout), made);
  for (GgufTensorOf& tensor : made.more) made.file.tensors.push_back(std::move(tensor));
  return std::move(made.file);
}

}  // namespace cortado
