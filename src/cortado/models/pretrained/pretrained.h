// Pretrained models of other programs into the form that everything here reads, and models of ours as they read them.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cortado/formats/gguf/file.h"
#include "cortado/models/language_model.h"

namespace cortado {

// What the files of a pretrained decoder say about it, whatever their format, and our config of it: Llama's
// architecture and its descendants, which differ in biases, windows, norms and caps.
struct PretrainedDecoder {
  std::string name;    // for people
  std::string source;  // for messages
  int64_t vocabulary = 0, dim = 0, heads = 0, kv_heads = 0, head_dim = 0, feed_forward = 0;
  int64_t context = 0;  // trained length
  double norm_eps = 1e-6;
  Rotary rotary = 1e4;
  bool qkv_bias = false, output_bias = false, feed_forward_bias = false;
  bool tied = false;
  std::vector<std::optional<int64_t>> windows;  // a layer: keys that a query sees, itself included; none: all
  bool gemma = false;                           // four norms a layer, GeGLU, embeddings times √D
  std::optional<double> scale;                  // of the scores; none: 1/√head_dim
  std::optional<double> softcap, final_softcap;

  int64_t layers() const { return static_cast<int64_t>(windows.size()); }
  // The one decoder's. Sizes that it cannot have: InputError.
  ModelConfig config() const;
};

// A parameter: our name of it, and the formats'.
struct PretrainedWeight {
  std::string name;  // "embedding.weight", "layers.3.mixer.q.weight"
  std::string hugging_face, gguf;
  std::vector<int64_t> shape;

  bool is_norm() const { return name.find("norm") != std::string::npos; }
};

// Calls `visit` with every parameter, in the order of the model's.
void visit_weights(const PretrainedDecoder& decoder, const std::function<void(const PretrainedWeight&)>& visit);

// A pretrained model on disk, of one format or another.
class PretrainedSource {
 public:
  using NameOf = std::string PretrainedWeight::*;
  explicit PretrainedSource(NameOf name) : name_(name) {}
  virtual ~PretrainedSource() = default;

  const PretrainedDecoder& decoder() const { return decoder_; }
  // The format's name of a parameter.
  const std::string& name_of(const PretrainedWeight& weight) const { return weight.*name_; }
  // Every tensor of the source by the format's name.
  const std::map<std::string, std::vector<int64_t>>& shapes() const { return shapes_; }
  // The parameter as our decoder has it, in whatever floating type; its shape must be the tensor's.
  virtual Tensor read(const PretrainedWeight& weight) const = 0;
  // Tensors that may be there and are not read.
  virtual bool is_idle(const std::string& name) const = 0;

 protected:
  PretrainedDecoder decoder_;
  std::map<std::string, std::vector<int64_t>> shapes_;

 private:
  NameOf name_;
};

// A folder with config.json, and model.safetensors or its shards with model.safetensors.index.json: LlamaForCausalLM,
// Mistral, Qwen2 and Gemma-2, as transformers 4 and 5 write them.
std::unique_ptr<PretrainedSource> open_hugging_face(const std::string& folder);

// A GGUF file of the architectures llama (Llama, Mistral, SmolLM2), qwen2 and gemma2.
std::unique_ptr<PretrainedSource> open_gguf(std::shared_ptr<const GgufFile> file);

// A GGUF file, or a Hugging Face folder. Neither: InputError.
std::unique_ptr<PretrainedSource> open_pretrained(const std::string& path);

// All parameters, checked against what the config needs (missing, of another shape, unknown: InputError) before the
// first is read. `dtype`: of all of them; none: as they are in the source, blocks of small integers as float32.
struct PretrainedModel {
  ModelConfig config;
  std::vector<std::pair<std::string, Tensor>> weights;
};
PretrainedModel read_pretrained(const PretrainedSource& source, std::optional<at::ScalarType> dtype = {});

// Writes RUN/config.json and RUN/last.safetensors.
void write_pretrained(const PretrainedModel& model, const std::string& run, const std::string& origin);

// What a Hugging Face config can say about a model of ours: softmax or windows in every layer, rotary positions, RMS
// norms, SwiGLU (or GeGLU with all that is Gemma-2's). Another model: InputError that names what does not fit.
PretrainedDecoder decoder_of(const ModelConfig& config);

// Writes FOLDER/config.json (as transformers 4 had it, which 5 reads as well) and model.safetensors, as the class that
// fits: gemma2, qwen2 (biases on q, k and v), mistral (windows) or llama.
void export_hugging_face(const LanguageModel& model, const std::string& folder, at::ScalarType dtype);

}  // namespace cortado
