// Writes models as GGUF files, which llama.cpp opens.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cortado/base/error.h"
#include "cortado/formats/gguf/writer.h"
#include "cortado/models/language_model.h"

namespace cortado {

using ModelWeights = torch::OrderedDict<std::string, at::Tensor>;

// A tensor of a file, and how to make it from our weights.
struct GgufTensorOf {
  std::string name;
  std::vector<int64_t> shape;
  std::function<Tensor(const ModelWeights& weights)> values;
};

// A model as a GGUF file has it, without its tokenizer.
struct GgufModel {
  std::string architecture;
  GgufSettings settings = {};  // their keys begin with the architecture's name
  std::vector<GgufTensorOf> tensors = {};

  void put(const std::string& key, GgufSetting value) {
    settings.emplace_back(architecture + "." + key, std::move(value));
  }
  void put_whole(const std::string& key, int64_t value);  // InputError for more than 32 bits
  void put_number(const std::string& key, double value) { put(key, static_cast<float>(value)); }
  // What all files say but for their blocks.
  void put_sizes(const ModelConfig& config, double norm_eps);
  // The channels of a head.
  void put_head(int64_t channels);
};

inline void expect_in_llama_cpp(bool fits, const std::string& what) {
  fail_input_if(!fits, "[export] llama.cpp has no ", what);
}

// Describes the file of one of our models. Throws InputError that names what llama.cpp does not have.
GgufModel gguf_model(const ModelConfig& config);
// The same for Llama and its descendants, and for the others.
GgufModel gguf_decoder(const ModelConfig& config);
GgufModel gguf_renamed_model(const ModelConfig& config);

// Puts linear or yarn's scaling of positions. Throws InputError for other kinds.
void put_gguf_scaling(const RotaryScaling& scaling, GgufModel& file);

// The context of models that do not say theirs.
inline constexpr int64_t kUnknownContext = 2048;

// Writes the file. `type` is one of writable_type(): the type of matrices. Norms and small tensors are float32, rows
// that do not fit blocks are float16, and the head of a file with 4 bits has 8. `tokenizer`: the settings of its
// tokenizer.
struct GgufExport {
  const GgmlType& type;
  GgufSettings tokenizer;
};
void export_gguf(const LanguageModel& model, const GgufExport& settings, const std::string& path);

}  // namespace cortado
