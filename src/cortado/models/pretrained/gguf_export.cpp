#include "cortado/models/pretrained/gguf_export.h"

#include "cortado/base/error.h"
#include "cortado/base/signals.h"
#include "cortado/mechanisms/sliding_window/mixer.h"
#include "cortado/mechanisms/softmax/mixer.h"
#include "cortado/nn/weights.h"

namespace cortado {
namespace {

// llama.cpp's numbers of the types of whole files.
uint32_t file_type(const GgmlType& type) {
  static const std::map<std::string, uint32_t> kNumbers = {{"F32", 0},  {"F16", 1},  {"BF16", 32},
                                                           {"Q8_0", 7}, {"Q4_0", 2}, {"Q4_1", 3}};
  return kNumbers.at(type.name);
}

// Tensors that llama.cpp's quantizer and converter keep in float32.
bool is_small(const GgufTensorOf& tensor) {
  const auto has = [&](const char* part) { return tensor.name.find(part) != std::string::npos; };
  constexpr const char* kMaps[] = {"time_mix_receptance", "time_mix_key", "time_mix_value", "time_mix_gate",
                                   "time_mix_output"};
  if (has("time_mix_") && std::ranges::none_of(kMaps, has)) return true;  // RWKV's low-rank maps
  return tensor.shape.size() < 2 || !tensor.name.ends_with(".weight") || tensor.name.ends_with("_norm.weight") ||
         has("ffn_gate_inp") || has("ssm_conv1d") || has("shortconv.conv.");
}

// A tensor's type. The head, or the embedding if it is the head too, gets 8 bits instead of 4: llama.cpp's quantizer
// gives it Q6_K, or Q8_0 if its rows do not fit that.
const GgmlType& type_of_tensor(const GgufTensorOf& tensor, const GgmlType& wanted, bool tied) {
  if (is_small(tensor)) return *writable_type("f32");
  if (tensor.shape.back() % wanted.values != 0) return *writable_type("f16");
  const bool head = tensor.name == (tied ? "token_embd.weight" : "output.weight");
  return head && wanted.decode ? *writable_type("q8_0") : wanted;
}

// Whether it may be a descendant of Llama.
bool is_decoder(const ModelConfig& config) {
  const bool gated =
      config.feed_forward.kind == FeedForwardKind::kSwiglu || config.feed_forward.kind == FeedForwardKind::kGeglu;
  return gated && config.changes.empty() && std::ranges::all_of(config.layers, [](const Json& layer) {
           return layer["mixer"] == kSoftmax.name || layer["mixer"] == kSlidingWindow.name;
         });
}

}  // namespace

void GgufModel::put_whole(const std::string& key, int64_t value) {
  fail_input_if(!std::in_range<uint32_t>(value), "[export] a GGUF file has no \"", key, "\" of ", value);
  put(key, static_cast<uint32_t>(value));
}

void GgufModel::put_sizes(const ModelConfig& config, double norm_eps) {
  put_whole("vocab_size", config.vocabulary);
  put_whole("context_length", config.context > 0 ? config.context : kUnknownContext);
  put_whole("embedding_length", config.dim);
  put_number("attention.layer_norm_rms_epsilon", norm_eps);
}

void GgufModel::put_head(int64_t channels) {
  put_whole("attention.key_length", channels);
  put_whole("attention.value_length", channels);
}

GgufModel gguf_model(const ModelConfig& config) {
  return is_decoder(config) ? gguf_decoder(config) : gguf_renamed_model(config);
}

void export_gguf(const LanguageModel& model, const GgufExport& settings, const std::string& path) {
  const ModelConfig& config = model.config();
  const GgufModel described = gguf_model(config);
  GgufSettings all = {{"general.architecture", described.architecture},
                      {"general.type", std::string("model")},
                      {"general.name", config.name},
                      {"general.file_type", file_type(settings.type)}};
  if (settings.type.decode) all.emplace_back("general.quantization_version", uint32_t{2});
  for (const GgufSettings* more : {&described.settings, &settings.tokenizer})
    all.insert(all.end(), more->begin(), more->end());
  const ModelWeights weights = named_weights(model);
  std::vector<GgufPart> parts;
  for (const GgufTensorOf& tensor : described.tensors) {
    const auto values = [&weights, &tensor] {
      if (interrupt_requested()) throw Failure("[export] stopped");
      return tensor.values(weights);
    };
    parts.push_back({tensor.name, tensor.shape, &type_of_tensor(tensor, settings.type, config.tied), values});
  }
  write_gguf(path, all, parts);
}

}  // namespace cortado
