// GGUF files of Llama and its descendants.
#include <algorithm>
#include <cmath>

#include "cortado/base/error.h"
#include "cortado/models/pretrained/gguf_export.h"
#include "cortado/models/pretrained/gguf_families.h"
#include "cortado/models/pretrained/gguf_rope.h"

namespace cortado {
namespace {

std::string architecture_of(const PretrainedDecoder& decoder) {
  const std::string type = hugging_face_type(decoder);
  if (type == "gemma3_text") return "gemma3";
  // llama.cpp's Llama may have biases.
  return type == "mistral" || type == "seed_oss" ? "llama" : type;
}

// Fills in what the description of a decoder says.
class DecoderFile {
 public:
  explicit DecoderFile(const ModelConfig& config)
      : decoder_(decoder_of(config)), file_{architecture_of(decoder_)}, family_(*find_gguf_family(file_.architecture)) {
    check_biases();
    check_scale();
    put_sizes();
    put_windows();
    put_rope();
    if (is("granite")) put_multipliers();
    if (decoder_.model.post_norm) put_caps();
    add_weights();
  }

  GgufModel take() && { return std::move(file_); }

 private:
  bool is(std::string_view architecture) const { return family_.architecture == architecture; }
  const ModelConfig& model() const { return decoder_.model; }
  const AttentionSettings& attention() const { return decoder_.attention; }

  void check_biases() const {
    const bool any = is("llama") || is("granite");
    expect_in_llama_cpp(any || is("qwen2") || !attention().bias,
                        concat("biases in the attention of ", file_.architecture));
    expect_in_llama_cpp(any || (!attention().output_bias && !model().feed_forward.bias),
                        concat("biases in the feed-forward and after the attention of ", file_.architecture));
    expect_in_llama_cpp(model().tied || !(is("gemma") || is("gemma2")),
                        concat("head of its own in ", file_.architecture));
  }

  void check_scale() const {
    if (!attention().scale || is("granite")) return;
    const double usual = 1 / std::sqrt(static_cast<double>(gguf_gemma_divisor(family_, decoder_)));
    expect_in_llama_cpp(std::abs(*attention().scale - usual) < 1e-6 * usual,
                        concat("scale of scores in ", file_.architecture, ", which is ", usual));
  }

  void put_sizes() {
    file_.put_sizes(model(), model().norm_eps);
    file_.put_whole("block_count", decoder_.layers());
    file_.put_whole("feed_forward_length", model().feed_forward.dim);
    file_.put_whole("attention.head_count", attention().heads);
    file_.put_whole("attention.head_count_kv", attention().kv_heads);
    file_.put_head(attention().head_dim);
  }

  // Whether the windows are those of layers whose number no multiple of `period` is; 0: of all layers.
  bool has_period(int64_t period) const {
    for (int64_t i = 0; i < decoder_.layers(); ++i) {
      if (decoder_.windows[i].has_value() != (period == 0 || (i + 1) % period != 0)) return false;
    }
    return true;
  }

  // Gemma's models alone have windows. A window that is no shorter than the context is none.
  void put_windows() {
    std::optional<int64_t> size;
    for (const auto& window : decoder_.windows) {
      expect_in_llama_cpp(!size || !window || *size == *window, "windows of several sizes");
      if (window) size = window;
    }
    if (family_.window_period == 0) {
      expect_in_llama_cpp(!size || *size >= model().context, concat("windows in ", file_.architecture));
      expect_in_llama_cpp(!size || model().context > 0, concat("windows in ", file_.architecture));
      return;
    }
    if (!size && is("gemma3")) return;
    int64_t period = family_.window_period;
    for (int64_t other = 0; !has_period(period) && other <= decoder_.layers() + 1; ++other) period = other;
    expect_in_llama_cpp(has_period(period), "windows at irregular distances");
    if (size) file_.put_whole("attention.sliding_window", *size);
    if (period != family_.window_period) file_.put_whole("attention.sliding_window_pattern", period);
  }

  // The positions of full attention; those of windows if there is none.
  Rotary full_rotary() const {
    for (int64_t i = 0; i < decoder_.layers(); ++i) {
      if (!decoder_.windows[i] && decoder_.rotary(i)) return *decoder_.rotary(i);
    }
    return *attention().rotary;
  }

  void put_rope() {
    const Rotary rotary = full_rotary();
    file_.put_whole("rope.dimension_count", attention().head_dim);
    file_.put_number("rope.freq_base", rotary.theta);
    put_scaling(rotary);
    for (int64_t i = 0; is("gemma3") && i < decoder_.layers(); ++i) {
      if (!decoder_.windows[i]) continue;
      file_.put_number("rope.freq_base_swa", decoder_.rotary(i)->theta);
      break;
    }
    for (int64_t i = 0; is("smollm3") && i < decoder_.layers(); ++i) {
      expect_in_llama_cpp(decoder_.rotary(i).has_value() == ((i + 1) % kBarePeriod != 0),
                          "layers without positions but every fourth one");
    }
  }

  void put_scaling(const Rotary& rotary) {
    const RotaryScaling& scaling = rotary.scaling;
    using Type = RotaryScaling::Type;
    if (scaling.type == Type::kNone) return;
    const bool lists = scaling.type == Type::kLlama3 || scaling.type == Type::kLongrope;
    expect_in_llama_cpp(!lists || is("llama") || is("granite"),
                        concat("positions with factors of frequencies in ", file_.architecture));
    expect_in_llama_cpp(scaling.type != Type::kYarn || !is("gemma3"), "yarn in gemma3");
    if (scaling.type == Type::kLlama3) {
      const int64_t channels = attention().head_dim;
      const Tensor plain = rotary_frequencies(channels, Rotary(rotary.theta), at::kCPU);
      add_factors(kRopeFactors, plain / rotary_frequencies(channels, rotary, at::kCPU));
      return;
    }
    if (scaling.type == Type::kLongrope) return put_longrope(scaling);
    put_gguf_scaling(scaling, file_);
  }

  void put_longrope(const RotaryScaling& scaling) {
    file_.put("rope.scaling.type", std::string("longrope"));
    file_.put_whole("rope.scaling.original_context_length", scaling.original_context);
    file_.put_number("rope.scaling.attn_factor", scaling.attention_factor);
    add_factors(kLongFactors, at::tensor(scaling.long_factors, at::kDouble));
    add_factors(kShortFactors, at::tensor(scaling.short_factors, at::kDouble));
  }

  void add_factors(const char* name, const Tensor& factors) {
    file_.tensors.push_back({name, factors.sizes().vec(), [factors](const ModelWeights&) { return factors; }});
  }

  // Ours are multiples of the residual stream's (PretrainedDecoder::set_multipliers), whose own is 1.
  void put_multipliers() {
    const double usual = 1 / std::sqrt(static_cast<double>(attention().head_dim));
    file_.put_number("attention.scale", attention().scale.value_or(usual));
    file_.put_number("embedding_scale", model().embedding_scale.value_or(1.0));
    file_.put_number("residual_scale", 1.0);
    file_.put_number("logit_scale", 1.0);
  }

  void put_caps() {
    expect_in_llama_cpp(!is("gemma2") || (attention().softcap && model().final_softcap), "gemma2 without its caps");
    if (attention().softcap) file_.put_number("attn_logit_softcapping", *attention().softcap);
    if (model().final_softcap) file_.put_number("final_logit_softcapping", *model().final_softcap);
  }

  void add_weights() {
    visit_weights(decoder_, [&](const PretrainedWeight& weight) {
      const bool q = weight.name.find(".mixer.q.") != std::string::npos,
                 k = weight.name.find(".mixer.k.") != std::string::npos;
      const int64_t heads = !family_.pairs ? 0 : q ? attention().heads : k ? attention().kv_heads : 0;
      file_.tensors.push_back({weight.gguf, weight.shape, [name = weight.name, heads](const ModelWeights& weights) {
                                 Tensor ours = weights[name];
                                 if (heads == 0) return ours;
                                 const Tensor halves = ours.reshape({heads, 2, ours.size(0) / heads / 2, -1});
                                 return halves.transpose(1, 2).reshape(ours.sizes());
                               }});
    });
  }

  PretrainedDecoder decoder_;
  GgufModel file_;
  const GgufFamily& family_;
};

}  // namespace

// llama.cpp multiplies the file's attention factor by yarn's own.
void put_gguf_scaling(const RotaryScaling& scaling, GgufModel& file) {
  using Type = RotaryScaling::Type;
  expect_in_llama_cpp(scaling.type == Type::kLinear || scaling.type == Type::kYarn,
                      concat("positions with factors of frequencies in ", file.architecture));
  file.put("rope.scaling.type", std::string(scaling.type == Type::kYarn ? "yarn" : "linear"));
  file.put_number("rope.scaling.factor", scaling.factor);
  if (scaling.type == Type::kLinear) return;
  expect_in_llama_cpp(scaling.truncate, "yarn without \"truncate\"");
  file.put_whole("rope.scaling.original_context_length", scaling.original_context);
  file.put_number("rope.scaling.yarn_beta_fast", scaling.beta_fast);
  file.put_number("rope.scaling.yarn_beta_slow", scaling.beta_slow);
  const double more = scaling.attention_factor / yarn_attention_factor(scaling.factor);
  if (std::abs(more - 1) > 1e-9) file.put_number("rope.scaling.attn_factor", more);
}

GgufModel gguf_decoder(const ModelConfig& config) { return DecoderFile(config).take(); }

}  // namespace cortado
