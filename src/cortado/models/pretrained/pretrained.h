// Pretrained models of other programs into the form that everything here reads, and models of ours as they read them.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cortado/formats/gguf/file.h"
#include "cortado/mechanisms/shared/attention.h"
#include "cortado/models/language_model.h"

namespace cortado {

// What the files of a pretrained decoder say about it, whatever their format, and our config of it: Llama's
// architecture and its descendants, which differ in biases, windows, norms and caps.
struct PretrainedDecoder {
  std::string source;  // for messages
  // Name, sizes, biases and caps. With post_norm it is a Gemma-2: four norms a layer, GeGLU, embeddings times √D. The
  // layers, and what all of them have in common, config() adds.
  ModelConfig model;
  AttentionSettings attention{};                // of every layer, but for the window
  std::vector<std::optional<int64_t>> windows;  // a layer: keys that a query sees, itself included; none: all

  bool gemma() const { return model.post_norm; }
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
struct PretrainedSource {
  PretrainedDecoder decoder;
  std::string PretrainedWeight::* name;                     // the format's of a parameter
  std::map<std::string, std::vector<int64_t>> shapes = {};  // every tensor of the source, by the format's name
  // The parameter as our decoder has it, in whatever floating type; its shape must be the tensor's.
  std::function<Tensor(const PretrainedWeight&)> read = {};
  // Of tensors that may be there and are not read.
  std::function<bool(const std::string& name)> is_idle = {};
};

// A folder with config.json, and model.safetensors or its shards with model.safetensors.index.json: LlamaForCausalLM,
// Mistral, Qwen2 and Gemma-2, as transformers 4 and 5 write them.
PretrainedSource open_hugging_face(const std::string& folder);

// A GGUF file of the architectures llama (Llama, Mistral, SmolLM2), qwen2 and gemma2.
PretrainedSource open_gguf(std::shared_ptr<const GgufFile> file);

// A GGUF file, or a Hugging Face folder. Neither: InputError.
PretrainedSource open_pretrained(const std::string& path);

// All parameters, checked against what the config needs (missing, of another shape, unknown: InputError) before the
// first is read. `dtype`: of all of them; none: as they are in the source, blocks of small integers as float32.
struct PretrainedModel {
  ModelConfig config;
  NamedTensors weights;
};
// Told of parameters: those that have been read, and all.
using ReadProgress = std::function<void(int64_t done, int64_t total)>;
PretrainedModel read_pretrained(const PretrainedSource& source, std::optional<at::ScalarType> dtype = {},
                                const ReadProgress& progress = {});

// The types of models that are read but are no descendants of Llama (renamed.h), for messages.
std::string renamed_types();

// Any pretrained model that is read here, opened: its config is checked, its weights are not read yet.
struct PretrainedReader {
  int64_t vocabulary;
  std::function<PretrainedModel(std::optional<at::ScalarType> dtype, const ReadProgress& progress)> read;
};
PretrainedReader pretrained_reader(const std::string& path);

// Writes RUN/config.json and RUN/last.safetensors.
void write_pretrained(const PretrainedModel& model, const std::string& run, const std::string& origin);

// What a Hugging Face config can say about a model of ours: softmax or windows in every layer, rotary positions, RMS
// norms, SwiGLU (or GeGLU with all that is Gemma-2's). Another model: InputError that names what does not fit.
PretrainedDecoder decoder_of(const ModelConfig& config);

// Writes FOLDER/config.json (as transformers 4 had it, which 5 reads as well) and model.safetensors, as the class that
// fits: gemma2, qwen2 (biases on q, k and v), mistral (windows) or llama.
void export_hugging_face(const LanguageModel& model, const std::string& folder, at::ScalarType dtype);

}  // namespace cortado
