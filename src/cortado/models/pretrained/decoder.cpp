#include "cortado/models/pretrained/decoder.h"

#include "cortado/base/error.h"
#include "cortado/mechanisms/sliding_window/mixer.h"
#include "cortado/mechanisms/softmax/mixer.h"

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

// `suffix` ".weight", and ".bias" where the decoder has one.
struct Map {
  std::string key;
  int64_t out, in;
  bool bias;
};

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

std::string PretrainedWeight::name() const { return layer < 0 ? key : concat("layers.", layer, ".", key); }

void visit_weights(const PretrainedDecoder& decoder, const std::function<void(const PretrainedWeight&)>& visit) {
  const int64_t dim = decoder.dim, hidden = decoder.feed_forward;
  const int64_t width = decoder.heads * decoder.head_dim, kv_width = decoder.kv_heads * decoder.head_dim;
  const auto norm = [&](const char* key, int64_t layer) { visit({std::string(key) + ".weight", layer, {dim}}); };
  const auto map = [&](const Map& linear, int64_t layer) {
    visit({linear.key + ".weight", layer, {linear.out, linear.in}});
    if (linear.bias) visit({linear.key + ".bias", layer, {linear.out}});
  };
  map({"embedding", decoder.vocabulary, dim, false}, -1);
  for (int64_t layer = 0; layer < decoder.layers(); ++layer) {
    norm("mixer_norm", layer);
    map({"mixer.q", width, dim, decoder.qkv_bias}, layer);
    map({"mixer.k", kv_width, dim, decoder.qkv_bias}, layer);
    map({"mixer.v", kv_width, dim, decoder.qkv_bias}, layer);
    map({"mixer.o", dim, width, decoder.output_bias}, layer);
    if (decoder.gemma) norm("mixer_post_norm", layer);
    norm("feed_forward_norm", layer);
    map({"feed_forward.gate", hidden, dim, decoder.feed_forward_bias}, layer);
    map({"feed_forward.up", hidden, dim, decoder.feed_forward_bias}, layer);
    map({"feed_forward.down", dim, hidden, decoder.feed_forward_bias}, layer);
    if (decoder.gemma) norm("feed_forward_post_norm", layer);
  }
  norm("norm", -1);
  if (!decoder.tied) map({"head", decoder.vocabulary, dim, false}, -1);
}

std::string WeightNames::of(const PretrainedWeight& weight) const {
  const size_t dot = weight.key.rfind('.');
  const std::string key = weight.key.substr(0, dot), suffix = weight.key.substr(dot);
  for (const auto& [ours, theirs] : weight.layer < 0 ? outside : inside) {
    if (ours != key) continue;
    return weight.layer < 0 ? theirs + suffix : concat(prefix, weight.layer, ".", theirs, suffix);
  }
  throw Failure(concat("[import] this format has no name for ", weight.name()));
}

}  // namespace cortado
