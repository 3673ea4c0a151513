#include <filesystem>
#include <set>

#include "cortado/base/error.h"
#include "cortado/base/files.h"
#include "cortado/base/signals.h"
#include "cortado/base/utf8.h"
#include "cortado/mechanisms/sliding_window/mixer.h"
#include "cortado/mechanisms/softmax/mixer.h"
#include "cortado/models/checkpoint.h"
#include "cortado/models/pretrained/pretrained.h"

namespace cortado {
namespace {

// Names the layer's positions where they are not the model's.
void add_positions(Json& mixer, const PretrainedDecoder& decoder, const std::optional<Rotary>& rotary) {
  const Rotary& usual = *decoder.attention.rotary;
  if (!rotary) mixer["rotary"] = false;
  if (!rotary) return;
  if (decoder.rotary_fraction != 1.0) mixer["rotary_fraction"] = decoder.rotary_fraction;
  if (rotary->theta != usual.theta) mixer["rope_theta"] = rotary->theta;
  if (rotary->scaling != usual.scaling) mixer["rope_scaling"] = rotary->scaling.to_json();
}

Json mixer_of(const PretrainedDecoder& decoder, int64_t layer) {
  const AttentionSettings& attention = decoder.attention;
  const std::optional<int64_t>& window = decoder.windows[layer];
  Json mixer = {{"mixer", window ? kSlidingWindow.name : kSoftmax.name}};
  if (window) mixer["window"] = *window;
  mixer["heads"] = attention.heads;
  mixer["kv_heads"] = attention.kv_heads;
  mixer["head_dim"] = attention.head_dim;
  if (attention.bias) mixer["bias"] = true;
  if (attention.bias != attention.output_bias) mixer["output_bias"] = attention.output_bias;
  if (attention.softcap) mixer["softcap"] = *attention.softcap;
  if (attention.scale) mixer["scale"] = *attention.scale;
  if (attention.qk_norm) mixer["qk_norm"] = true;
  if (attention.qk_norm) mixer["norm_eps"] = *attention.qk_norm;
  add_positions(mixer, decoder, decoder.rotary(layer));
  return mixer;
}

// A norm or a linear map: our name and the formats' names. `bias`: it has a bias.
struct WeightNames {
  std::string ours, hugging_face, gguf;
  std::vector<int64_t> shape = {};
  bool bias = false;
};

// The parts of one layer, in the model's order.
std::vector<WeightNames> layer_weights(const PretrainedDecoder& decoder) {
  const int64_t dim = decoder.model.dim, hidden = decoder.model.feed_forward.dim;
  const int64_t width = decoder.attention.width(), kv_width = decoder.attention.kv_width();
  const int64_t head = decoder.attention.head_dim;
  const bool post = decoder.model.post_norm, qkv = decoder.attention.bias, biased = decoder.model.feed_forward.bias;
  std::vector<WeightNames> weights = {
      {"mixer_norm", "input_layernorm", "attn_norm", {dim}},
      {"mixer.q", "self_attn.q_proj", "attn_q", {width, dim}, qkv},
      {"mixer.k", "self_attn.k_proj", "attn_k", {kv_width, dim}, qkv},
      {"mixer.v", "self_attn.v_proj", "attn_v", {kv_width, dim}, qkv},
      {"mixer.o", "self_attn.o_proj", "attn_output", {dim, width}, decoder.attention.output_bias},
      {"mixer.q_norm", "self_attn.q_norm", "attn_q_norm", {head}},
      {"mixer.k_norm", "self_attn.k_norm", "attn_k_norm", {head}},
      {"mixer_post_norm", "post_attention_layernorm", "post_attention_norm", {dim}},
      // Only with these norms is post_attention_layernorm a norm after the attention.
      {"feed_forward_norm", post ? "pre_feedforward_layernorm" : "post_attention_layernorm", "ffn_norm", {dim}},
      {"feed_forward.gate", "mlp.gate_proj", "ffn_gate", {hidden, dim}, biased},
      {"feed_forward.up", "mlp.up_proj", "ffn_up", {hidden, dim}, biased},
      {"feed_forward.down", "mlp.down_proj", "ffn_down", {dim, hidden}, biased},
      {"feed_forward_post_norm", "post_feedforward_layernorm", "post_ffw_norm", {dim}}};
  std::erase_if(weights, [&](const WeightNames& it) {
    return (!post && it.ours.ends_with("_post_norm")) ||
           (!decoder.attention.qk_norm && (it.ours == "mixer.q_norm" || it.ours == "mixer.k_norm"));
  });
  return weights;
}

// Checks that every parameter is there with its shape, and no other tensor.
void check_tensors(const PretrainedSource& source) {
  const std::string where = concat("[import] ", source.decoder.source, ": ");
  std::set<std::string> used;
  visit_weights(source.decoder, [&](const PretrainedWeight& weight) {
    const std::string name = weight.*source.name;
    const auto found = source.shapes.find(name);
    fail_input_if(found == source.shapes.end(), where, "there is no tensor \"", name, "\"");
    fail_input_if(found->second != weight.shape, where, "tensor \"", name, "\" is ", at::IntArrayRef(found->second),
                  ", expected ", at::IntArrayRef(weight.shape));
    used.insert(name);
  });
  for (const auto& [name, shape] : source.shapes) {
    fail_input_if(!used.contains(name) && !source.is_idle(name), where, "tensor ", printable(name),
                  " belongs to no part of this architecture that is supported");
  }
}

}  // namespace

void PretrainedDecoder::set_multipliers(const Multipliers& multipliers) {
  const auto [embedding, residual, logits] = multipliers;
  logits_scaling = logits;
  model.embedding_scale = embedding / residual;
  model.norm_eps /= residual * residual;
  fail_input_if(model.norm_eps > 1, "[import] ", source, ": \"residual_multiplier\" ", residual,
                " is too small for the norms' epsilon, \"rms_norm_eps\"");
}

void PretrainedDecoder::want_context(int64_t context) {
  bool chosen = false;
  const auto choose = [&](std::optional<Rotary>& rotary) {
    if (!rotary || rotary->scaling.type != RotaryScaling::Type::kLongrope) return;
    rotary->scaling.context = context;
    chosen = true;
  };
  choose(attention.rotary);
  for (auto& rotary : rotaries) choose(rotary);
  fail_input_if(!chosen, "[import] ", source,
                ": the context chooses longrope's factors, which this model does not have");
}

ModelConfig PretrainedDecoder::config() const {
  ModelConfig config = model;
  config.heads = model.dim % attention.heads == 0 ? attention.heads : 1;
  const auto channels = static_cast<int64_t>(rotary_fraction * static_cast<double>(attention.head_dim));
  for (int64_t layer = 0; layer < layers(); ++layer) {
    const int64_t listed = rotary(layer) ? rotary(layer)->scaling.listed() : 0;
    fail_input_if(listed > 0 && listed != channels / 2, "[import] ", source, ": a head has ", channels / 2,
                  " rotary frequencies, its positions have ", listed, " factors");
    config.layers.push_back(mixer_of(*this, layer));
  }
  if (gemma()) config.feed_forward.activation = Activation::kGeluTanh;
  config.scaled_embedding = gemma();
  config.positions = PositionKind::kRotary;
  config.rope_theta = attention.rotary->theta;
  config.rope_scaling = attention.rotary->scaling;
  return ModelConfig::from_json(config.to_json(), source);
}

void visit_weights(const PretrainedDecoder& decoder, const std::function<void(const PretrainedWeight&)>& visit) {
  const auto visit_named = [&](const WeightNames& weight, const WeightNames& within) {
    const auto named = [&](const char* suffix, const std::vector<int64_t>& shape) {
      visit({within.ours + weight.ours + suffix, within.hugging_face + weight.hugging_face + suffix,
             within.gguf + weight.gguf + suffix, shape});
    };
    named(".weight", weight.shape);
    if (weight.bias) named(".bias", {weight.shape[0]});
  };
  const int64_t dim = decoder.model.dim, vocabulary = decoder.model.vocabulary;
  visit_named({"embedding", "model.embed_tokens", "token_embd", {vocabulary, dim}}, {});
  for (int64_t i = 0; i < decoder.layers(); ++i) {
    const WeightNames layer{concat("layers.", i, "."), concat("model.layers.", i, "."), concat("blk.", i, ".")};
    for (const WeightNames& weight : layer_weights(decoder)) visit_named(weight, layer);
  }
  visit_named({"norm", "model.norm", "output_norm", {dim}}, {});
  if (!decoder.model.tied) visit_named({"head", "lm_head", "output", {vocabulary, dim}}, {});
}

PretrainedSource open_pretrained(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  fail_input_if(!fs::exists(path, ignored), "[import] there is no ", path);
  if (!fs::is_directory(path, ignored)) {
    fail_input_if(!is_gguf(path), "[import] ", path,
                  " is not a GGUF file; a Hugging Face model is given as its folder");
    return open_gguf(std::make_shared<const GgufFile>(path));
  }
  fail_input_if(!fs::exists(path + "/config.json", ignored), "[import] ", path,
                " has no config.json: it is not the folder of a Hugging Face model");
  return open_hugging_face(path);
}

void ReadWeights::put(PretrainedModel& model, const std::string& name, const Tensor& weight) const {
  const Tensor typed = dtype ? weight.to(*dtype) : weight;
  if (take) return take(model.config, name, typed);
  model.weights.emplace_back(name, typed);
}

PretrainedModel read_pretrained(const PretrainedSource& source, const ReadWeights& how) {
  PretrainedDecoder decoder = source.decoder;
  std::string& name = decoder.model.name;
  if (utf8_valid_prefix(name) != name.size()) name = "imported";
  const auto [heads, kv_heads] = std::pair(decoder.attention.heads, decoder.attention.kv_heads);
  fail_input_if(heads % kv_heads != 0, "[import] ", decoder.source, ": ", heads, " heads are not a multiple of ",
                kv_heads, " key heads");
  check_tensors(source);
  PretrainedModel model{decoder.config(), {}, source.left_out};
  int64_t done = 0, total = 0;
  visit_weights(decoder, [&](const PretrainedWeight& weight) { total += c10::multiply_integers(weight.shape); });
  visit_weights(decoder, [&](const PretrainedWeight& weight) {
    if (interrupt_requested()) throw Failure(concat("[import] ", decoder.source, ": stopped"));
    Tensor tensor = source.read(weight);
    if (decoder.logits_scaling != 1 && weight.name == "norm.weight")
      tensor = tensor.to(at::kFloat) / decoder.logits_scaling;
    how.put(model, weight.name, tensor);
    if (how.progress) how.progress(done += tensor.numel(), total);
  });
  return model;
}

void write_pretrained(const PretrainedModel& model, const std::string& run, const std::string& origin) {
  save_weights(model.config, model.weights, run + "/last.safetensors", {{"origin", origin}});
  write_run_config(model.config, run);
}

void write_run_config(const ModelConfig& config, const std::string& run) {
  Json json = config.to_json();
  json["model_type"] = kModelType;
  write_file(run + "/config.json", json.dump(2) + "\n");
}

}  // namespace cortado
