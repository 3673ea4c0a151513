#include "cortado/base/error.h"
#include "cortado/mechanisms/sliding_window/mixer.h"
#include "cortado/mechanisms/softmax/mixer.h"
#include "cortado/models/pretrained/pretrained.h"

namespace cortado {

namespace {

Json mixer_of(const PretrainedDecoder& decoder, const std::optional<int64_t>& window) {
  Json mixer = {{"mixer", window ? kSlidingWindow.name : kSoftmax.name}};
  if (window) mixer["window"] = *window;
  mixer["heads"] = decoder.heads;
  mixer["kv_heads"] = decoder.kv_heads;
  mixer["head_dim"] = decoder.head_dim;
  if (decoder.qkv_bias) mixer["bias"] = true;
  if (decoder.qkv_bias != decoder.output_bias) mixer["output_bias"] = decoder.output_bias;
  if (decoder.softcap) mixer["softcap"] = *decoder.softcap;
  if (decoder.scale) mixer["scale"] = *decoder.scale;
  return mixer;
}

// A norm or a linear map: our name and the formats'; `bias`: it has one beside its weight.
struct Part {
  std::string ours, hugging_face, gguf;
  std::vector<int64_t> shape = {};
  bool bias = false;
};

// The parts of one layer, in the model's order.
std::vector<Part> layer_parts(const PretrainedDecoder& decoder) {
  const int64_t dim = decoder.dim, hidden = decoder.feed_forward;
  const int64_t width = decoder.heads * decoder.head_dim, kv_width = decoder.kv_heads * decoder.head_dim;
  const bool gemma = decoder.gemma, qkv = decoder.qkv_bias, biased = decoder.feed_forward_bias;
  std::vector<Part> parts = {
      {"mixer_norm", "input_layernorm", "attn_norm", {dim}},
      {"mixer.q", "self_attn.q_proj", "attn_q", {width, dim}, qkv},
      {"mixer.k", "self_attn.k_proj", "attn_k", {kv_width, dim}, qkv},
      {"mixer.v", "self_attn.v_proj", "attn_v", {kv_width, dim}, qkv},
      {"mixer.o", "self_attn.o_proj", "attn_output", {dim, width}, decoder.output_bias},
      {"mixer_post_norm", "post_attention_layernorm", "post_attention_norm", {dim}},
      // Only Gemma-2's post_attention_layernorm is what its name says.
      {"feed_forward_norm", gemma ? "pre_feedforward_layernorm" : "post_attention_layernorm", "ffn_norm", {dim}},
      {"feed_forward.gate", "mlp.gate_proj", "ffn_gate", {hidden, dim}, biased},
      {"feed_forward.up", "mlp.up_proj", "ffn_up", {hidden, dim}, biased},
      {"feed_forward.down", "mlp.down_proj", "ffn_down", {dim, hidden}, biased},
      {"feed_forward_post_norm", "post_feedforward_layernorm", "post_ffw_norm", {dim}}};
  if (!gemma) std::erase_if(parts, [](const Part& part) { return part.ours.ends_with("post_norm"); });
  return parts;
}

}  // namespace

ModelConfig PretrainedDecoder::config() const {
  Json layers = Json::array();
  for (const auto& window : windows) layers.push_back({{"mixer", mixer_of(*this, window)}});
  Json json = {
      {"name", name},
      {"vocabulary", vocabulary},
      {"dim", dim},
      {"heads", dim % heads == 0 ? heads : 1},
      {"layers", layers},
      {"norm", "rms"},
      {"norm_eps", norm_eps},
      {"post_norm", gemma},
      {"feed_forward", {{"type", gemma ? "geglu" : "swiglu"}, {"dim", feed_forward}, {"bias", feed_forward_bias}}},
      {"positions", "rotary"},
      {"rope_theta", rotary.theta},
      {"context", context},
      {"embedding", {{"tied", tied}, {"scaled", gemma}}}};
  if (rotary.scaling.type != RotaryScaling::Type::kNone) json["rope_scaling"] = rotary.scaling.to_json();
  if (final_softcap) json["final_softcap"] = *final_softcap;
  return ModelConfig::from_json(json, source);
}

void visit_weights(const PretrainedDecoder& decoder, const std::function<void(const PretrainedWeight&)>& visit) {
  const auto visit_part = [&](const Part& part, const Part& within) {
    const auto named = [&](const char* suffix, const std::vector<int64_t>& shape) {
      visit({within.ours + part.ours + suffix, within.hugging_face + part.hugging_face + suffix,
             within.gguf + part.gguf + suffix, shape});
    };
    named(".weight", part.shape);
    if (part.bias) named(".bias", {part.shape[0]});
  };
  const int64_t dim = decoder.dim, vocabulary = decoder.vocabulary;
  visit_part({"embedding", "model.embed_tokens", "token_embd", {vocabulary, dim}}, {});
  for (int64_t i = 0; i < decoder.layers(); ++i) {
    const Part layer{concat("layers.", i, "."), concat("model.layers.", i, "."), concat("blk.", i, ".")};
    for (const Part& part : layer_parts(decoder)) visit_part(part, layer);
  }
  visit_part({"norm", "model.norm", "output_norm", {dim}}, {});
  if (!decoder.tied) visit_part({"head", "lm_head", "output", {vocabulary, dim}}, {});
}

}  // namespace cortado
