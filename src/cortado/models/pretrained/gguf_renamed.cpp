#include "cortado/models/pretrained/gguf_renamed.h"

#include <algorithm>

#include "cortado/base/error.h"

namespace cortado {
namespace {

using Change = std::function<Tensor(const Tensor&)>;

// Modules of a mixer: their names in a folder's tensors and in a file's. A few have no suffix. Those that depend on the
// kind of mixer are named with it.
const std::map<std::string, std::string> kMixerTensors = {{"in_proj", "ssm_in"},
                                                          {"conv1d", "ssm_conv1d"},
                                                          {"x_proj", "ssm_x"},
                                                          {"dt_proj", "ssm_dt"},
                                                          {"A_log", "ssm_a"},
                                                          {"D", "ssm_d"},
                                                          {"norm", "ssm_norm"},
                                                          {"out_proj", "ssm_out"},
                                                          {"dt_layernorm", "ssm_dt_norm"},
                                                          {"b_layernorm", "ssm_b_norm"},
                                                          {"c_layernorm", "ssm_c_norm"},
                                                          {"dt_bias", "ssm_dt.bias"},
                                                          {"q_proj", "attn_q"},
                                                          {"k_proj", "attn_k"},
                                                          {"v_proj", "attn_v"},
                                                          {"o_proj", "attn_output"},
                                                          {"q_norm", "attn_q_norm"},
                                                          {"k_norm", "attn_k_norm"},
                                                          {"in_proj_qkv", "attn_qkv"},
                                                          {"in_proj_z", "attn_gate"},
                                                          {"in_proj_b", "ssm_beta"},
                                                          {"in_proj_a", "ssm_alpha"},
                                                          {"conv.in_proj", "shortconv.in_proj"},
                                                          {"conv.conv", "shortconv.conv"},
                                                          {"conv.out_proj", "shortconv.out_proj"},
                                                          {"self_attn.out_proj", "attn_output"},
                                                          {"q_layernorm", "attn_q_norm"},
                                                          {"k_layernorm", "attn_k_norm"},
                                                          {"sinks", "attn_sinks.weight"},
                                                          {"up_proj", "ffn_up"},
                                                          {"down_proj", "ffn_down"},
                                                          // Kimi Linear
                                                          {"q_conv1d", "ssm_conv1d_q"},
                                                          {"k_conv1d", "ssm_conv1d_k"},
                                                          {"v_conv1d", "ssm_conv1d_v"},
                                                          {"f_a_proj", "ssm_f_a"},
                                                          {"f_b_proj", "ssm_f_b"},
                                                          {"g_a_proj", "ssm_g_a"},
                                                          {"g_b_proj", "ssm_g_b"},
                                                          {"b_proj", "ssm_beta"},
                                                          {"o_norm", "ssm_norm"},
                                                          {"kv_a_proj_with_mqa", "attn_kv_a_mqa"},
                                                          {"kv_a_layernorm", "attn_kv_a_norm"},
                                                          {"kv_b_proj", "attn_kv_b"},
                                                          // MiniMax-01
                                                          {"qkv_proj", "attn_qkv"},
                                                          {"output_gate", "attn_gate"},
                                                          {"self_attn.norm", "attn_norm_2"},
                                                          // Nemotron-3's experts
                                                          {"gate", "ffn_gate_inp"},
                                                          {"fc1_latent_proj", "ffn_latent_down"},
                                                          {"fc2_latent_proj", "ffn_latent_up"}};
const std::map<std::string, std::string> kOutside = {
    {"embedding.weight", "token_embd.weight"}, {"norm.weight", "output_norm.weight"}, {"head.weight", "output.weight"}};

// Files have A = -exp(A_log).
const TheirTensor::Value kNegativeExponent = {[](const Tensor& x) { return (-x.to(at::kFloat)).log(); },
                                              [](const Tensor& x) { return -x.to(at::kFloat).exp(); }};

// Returns what follows the first `dots` dots of a name.
std::string after_dots(const std::string& name, int dots) {
  size_t begin = 0;
  for (int i = 0; i < dots; ++i) begin = name.find('.', begin) + 1;
  return name.substr(begin);
}

// The order of a folder's rows, where the file has pairs of neighbours in place of halves.
Change halves_of(int64_t heads) {
  return [=](const Tensor& x) { return x.unflatten(0, {heads, -1, 2}).transpose(1, 2).reshape(x.sizes()); };
}

// Selects `size` rows of each key head, from `begin` on.
Change rows_of_key_heads(const GgufLayout& layout, int64_t begin, int64_t size) {
  return [=, heads = layout.key_heads](const Tensor& x) {
    return x.unflatten(0, {heads, -1}).narrow(1, begin, size).flatten(0, 1);
  };
}

// The order of a folder's value heads, by key head. Those of the file begin at `begin` of a dimension, and each has
// `size` channels.
Change by_key_head(const GgufLayout& layout, int64_t dimension, int64_t begin, int64_t size) {
  return [=](const Tensor& x) {
    const Tensor tiled = x.narrow(dimension, begin, x.size(dimension) - begin);
    const Tensor grouped = tiled.unflatten(dimension, {layout.per_key, layout.key_heads, size})
                               .transpose(dimension, dimension + 1)
                               .flatten(dimension, dimension + 2);
    return at::cat({x.narrow(dimension, 0, begin), grouped}, dimension);
  };
}

// Undoes the tiling of value heads in one of Gated DeltaNet's tensors; empty for tensors without value heads.
Change untiled(const GgufLayout& layout, const std::string& tensor) {
  const int64_t keys = 2 * layout.key_heads * layout.key_dim;
  if (tensor == "attn_qkv.weight" || tensor == "ssm_conv1d.weight")
    return by_key_head(layout, 0, keys, layout.value_dim);
  if (tensor == "attn_gate.weight") return by_key_head(layout, 0, 0, layout.value_dim);
  if (tensor == "ssm_out.weight") return by_key_head(layout, 1, 0, layout.value_dim);
  if (tensor == "ssm_beta.weight" || tensor == "ssm_alpha.weight" || tensor == "ssm_a" || tensor == "ssm_dt.bias")
    return by_key_head(layout, 0, 0, 1);
  return {};
}

Change then(const Change& first, const Change& second) {
  if (!first) return second;
  if (!second) return first;
  return [=](const Tensor& x) { return second(first(x)); };
}

// The number of the folder's layer that a tensor is in.
std::string layer_number(const std::string& theirs) {
  const size_t begin = theirs.find("layers.") + 7;
  return theirs.substr(begin, theirs.find('.', begin) - begin);
}

// "attn_q.weight" for "model.layers.3.self_attn.q_proj.weight".
std::string name_in_block(const std::string& theirs) {
  const std::string mixer = after_dots(theirs.substr(theirs.find("layers.")), 2), inside = after_dots(mixer, 1);
  const std::string module = inside.substr(0, inside.find('.'));
  const auto special = kMixerTensors.find(mixer.substr(0, mixer.size() - inside.size()) + module);
  const std::string name = special != kMixerTensors.end() ? special->second : kMixerTensors.at(module);
  return name + inside.substr(module.size());
}

// The form of one of the tensors into which a file cuts the map of multi-head latent attention's keys and values. The
// folder's form gives [H, rows, rank]; the keys' map is transposed.
TheirTensor latent_form(const std::string& block, const TheirTensor& theirs, bool keys) {
  Shape shape = theirs.change(at::empty(theirs.shape, at::kMeta)).sizes().vec();
  if (!keys) return {block + "attn_v_b.weight", shape};
  std::swap(shape[1], shape[2]);
  return {block + "attn_k_b.weight", shape, [](const Tensor& x) { return x.transpose(1, 2); }};
}

// The form of a weight of experts that are blocks of their own; nullopt for other weights.
std::optional<TheirTensor> separate_expert_form(const std::string& block, const std::vector<TheirTensor>& forms) {
  const std::string& name = forms.front().name;
  if (name.ends_with("e_score_correction_bias")) return TheirTensor{block + "exp_probs_b.bias", forms.front().shape};
  const bool shared = name.find(".shared_experts.") != std::string::npos;
  const size_t own = name.find(".experts.");
  if (!shared && own == std::string::npos) return std::nullopt;
  const char* which = name.find(".up_proj.") != std::string::npos ? "up" : "down";
  if (shared) return TheirTensor{concat(block, "ffn_", which, "_shexp.weight"), forms.front().shape};
  const Shape joint = std::ranges::find_if(forms, [](const TheirTensor& it) { return it.shape.size() == 3; })->shape;
  return TheirTensor{concat(block, "ffn_", which, "_exps.weight"), joint, {}, std::stoll(name.substr(own + 9))};
}

// The file's form of a mixer's tensor whose form in a folder is `theirs`.
TheirTensor mixer_tensor(const GgufLayout& layout, const std::string& block, const TheirTensor& theirs) {
  const std::string tensor = name_in_block(theirs.name);
  TheirTensor form{block + tensor, theirs.shape};
  Change back;
  const auto reshaped = [shape = theirs.shape](const Tensor& x) { return x.reshape(shape); };
  if (layout.groups > 0 && (tensor == "ssm_a" || tensor == "ssm_d")) form.shape.push_back(1);
  if (layout.groups > 0 && tensor == "ssm_norm.weight")
    form.shape = {layout.groups, theirs.shape.front() / layout.groups};
  if (tensor == "ssm_conv1d.weight" || tensor == "shortconv.conv.weight") form.shape.erase(form.shape.begin() + 1);
  if (layout.tiled) back = untiled(layout, tensor);
  if (form.shape != theirs.shape) back = then(back, reshaped);
  if (tensor == "ssm_a") form.value = &kNegativeExponent;
  if (layout.paired_heads > 0 && tensor.starts_with("attn_q.")) back = halves_of(layout.paired_heads);
  if (layout.paired_heads > 0 && tensor.starts_with("attn_k.")) back = halves_of(layout.paired_key_heads);
  const bool beta = tensor == "ssm_beta.weight";
  if (layout.joint_gates && (beta || tensor == "ssm_alpha.weight")) {
    form = {block + "ssm_ba.weight", {2 * theirs.shape[0], theirs.shape[1]}};
    back = rows_of_key_heads(layout, beta ? 0 : layout.per_key, layout.per_key);
  }
  const bool summed = layout.one_plus && tensor.ends_with("_norm.weight") && tensor != "ssm_norm.weight";
  form.change = then(back, summed ? Change() : theirs.change);
  return form;
}

// Early files of Qwen3-Next have its joint map as the folder has it. Returns the form of the weight of this name within
// the mixer, if its usual form is a part of the split map.
std::optional<TheirTensor> early_form(const GgufLayout& layout, const std::string& block, const std::string& name,
                                      const TheirTensor& usual) {
  const bool split = usual.name.ends_with(".attn_qkv.weight") || usual.name.ends_with(".attn_gate.weight");
  if (!layout.joint_gates || !split) return std::nullopt;
  const int64_t key = layout.key_dim, wide = layout.per_key * layout.value_dim;
  const std::map<std::string, std::pair<int64_t, int64_t>> rows = {{"mixer.q.weight", {0, key}},
                                                                   {"mixer.k.weight", {key, key}},
                                                                   {"mixer.v.weight", {2 * key, wide}},
                                                                   {"mixer.gate.weight", {2 * key + wide, wide}}};
  const auto [begin, size] = rows.at(name);
  return TheirTensor{block + "ssm_in.weight",
                     {2 * layout.key_heads * (key + wide), usual.shape.back()},
                     rows_of_key_heads(layout, begin, size)};
}

// A block's norm, without its suffix.
std::string norm_name(const GgufLayout& layout, const std::string& ours) {
  if (ours == "feed_forward_norm.weight") return layout.feed_forward_norm;
  if (ours == "mixer_post_norm.weight") return "post_attention_norm";
  return ours == "feed_forward_post_norm.weight" ? "post_ffw_norm" : "attn_norm";
}

// The feed-forward's weights, whose names in files do not depend on the architecture.
RenamedWeights feed_forward_weights(const FeedForwardConfig& config, int64_t dim) {
  RenamedWeights weights;
  const auto gated = [&](const std::string& ours, const std::string& suffix, int64_t hidden) {
    for (const char* name : {"gate", "up"})
      weights.map(concat(ours, name, ".weight"), concat("ffn_", name, suffix, ".weight"), {hidden, dim});
    weights.map(ours + "down.weight", concat("ffn_down", suffix, ".weight"), {dim, hidden});
  };
  const int64_t hidden = config.dim;
  if (config.kind == FeedForwardKind::kSwiglu) gated("feed_forward.", "", hidden);
  if (config.kind != FeedForwardKind::kExperts) return weights;
  const ExpertChoice& experts = config.experts;
  weights.linear("feed_forward.router", "ffn_gate_inp", experts.count, dim, experts.router_bias);
  if (experts.choice_bias) weights.map("feed_forward.choice_bias", "exp_probs_b.bias", {experts.count});
  for (int64_t i = 0; i < experts.count; ++i) {
    const std::string ours = concat("feed_forward.experts.", i, ".");
    for (const char* name : {"gate", "up", "down"}) {
      const bool down = std::string(name) == "down";
      weights.map(concat(ours, name, ".weight"), concat("ffn_", name, "_exps.weight"),
                  {experts.count, down ? dim : hidden, down ? hidden : dim});
      weights.list.back().forms.front().index = i;
      if (!config.bias) continue;
      weights.map(concat(ours, name, ".bias"), concat("ffn_", name, "_exps.bias"),
                  {experts.count, down ? dim : hidden});
      weights.list.back().forms.front().index = i;
    }
  }
  if (experts.shared == 0) return weights;
  gated("feed_forward.shared.", "_shexp", experts.shared);
  if (experts.shared_gate) weights.map("feed_forward.shared_gate.weight", "ffn_gate_inp_shexp.weight", {1, dim});
  return weights;
}

}  // namespace

RenamedWeights gguf_weights(const RenamedModel& folder, const GgufLayout& layout) {
  if (layout.head_norm_eps > 0) return gguf_rwkv_weights(folder, layout);
  RenamedWeights weights;
  for (const auto& [ours, forms] : folder.weights.list) {
    const TheirTensor& theirs = forms.front();
    const Change change = layout.one_plus && ours.ends_with("norm.weight") ? Change() : theirs.change;
    if (const auto outside = kOutside.find(ours); outside != kOutside.end()) {
      const bool last = ours == "norm.weight";
      weights.map(ours, last ? concat(layout.last_norm, ".weight") : outside->second, theirs.shape, change);
      continue;
    }
    const std::string inside = after_dots(ours, 2), block = concat("blk.", layer_number(theirs.name), ".");
    const bool separate = layout.separate_blocks && inside.starts_with("feed_forward.");
    if (auto expert = separate ? separate_expert_form(block, forms) : std::nullopt) {
      weights.list.push_back({ours, {std::move(*expert)}});
    } else if (inside.starts_with("mixer.") || separate) {
      const TheirTensor form = mixer_tensor(layout, block, theirs);
      const bool latent = theirs.name.ends_with(".kv_b_proj.weight");
      if (latent) weights.list.push_back({ours, {latent_form(block, theirs, inside == "mixer.k_up")}});
      weights.or_map(ours, form);
      if (auto early = early_form(layout, block, inside, form)) weights.or_map(ours, std::move(*early));
    } else if (!inside.starts_with("feed_forward.")) {
      const std::string name = block + norm_name(layout, inside);
      if (layout.bare_norm && inside == "feed_forward_norm.weight") weights.or_map(ours, {name, theirs.shape, change});
      weights.or_map(ours, {name + ".weight", theirs.shape, change});
    }
  }
  if (layout.separate_blocks) return weights;
  for (int64_t i = 0; i < std::ssize(folder.config.layers); ++i) {
    for (RenamedWeight weight : feed_forward_weights(folder.config.feed_forward_of(i), folder.config.dim).list) {
      weight.ours = concat("layers.", i, ".", weight.ours);
      weight.forms.front().name = concat("blk.", i, ".", weight.forms.front().name);
      weights.list.push_back(std::move(weight));
    }
  }
  return weights;
}

namespace {

// Without the ones at its beginning, which llama.cpp's quantizer drops.
Shape without_ones(const Shape& shape) {
  return {std::ranges::find_if(shape, [](auto n) { return n != 1; }), shape.end()};
}

TheirTensors tensors_of(const std::shared_ptr<const GgufFile>& file, const RenamedWeights& weights) {
  TheirTensors tensors;
  for (const GgufTensor& it : file->tensors()) tensors.kinds[it.name] = {it.shape, it.type->plain};
  for (const RenamedWeight& weight : weights.list) {
    for (const TheirTensor& form : weight.forms) {
      const auto found = tensors.kinds.find(form.name);
      if (found == tensors.kinds.end()) continue;
      Shape& shape = found->second.shape;
      if (without_ones(shape) == without_ones(form.shape)) shape = form.shape;
    }
  }
  tensors.read = [file](const TheirTensor& form) {
    const GgufTensor& found = *file->find(form.name);
    return form.index ? GgufFile::read(found, *form.index) : GgufFile::read(found).view(form.shape);
  };
  join_rwkv6_mixes(tensors);
  return tensors;
}

}  // namespace

RenamedModel gguf_folder_model(const Json& config, const GgufLayout& layout, const std::string& place) {
  JsonReader reader(config, place);
  RenamedModel model = read_architecture(reader).value();
  for (Json& layer : model.config.layers) {
    if (layout.head_norm_eps > 0 && layer.contains("norm_eps")) layer["norm_eps"] = layout.head_norm_eps;
  }
  return model;
}

std::optional<RenamedSource> renamed_gguf(const std::shared_ptr<const GgufFile>& file) {
  const auto read = gguf_config(*file);
  if (!read) return std::nullopt;
  RenamedModel model = gguf_folder_model(read->config, read->layout, file->name() + " (metadata)");
  if (read->scaling.type != RotaryScaling::Type::kNone) model.config.rope_scaling = read->scaling;
  model.weights = gguf_weights(model, read->layout);
  model.left_out.clear();
  model.idle = read->idle;
  // The layers for multi-token prediction, which llama.cpp omits too.
  const int64_t blocks =
      file->metadata().integer(file->metadata().text("general.architecture") + ".block_count", 1, kDeepest);
  for (int64_t i = read->blocks; i < blocks; ++i) model.left_out.push_back(concat("blk.", i, "."));
  return RenamedSource{model, [=] { return tensors_of(file, model.weights); }};
}

}  // namespace cortado
