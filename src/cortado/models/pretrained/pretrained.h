// Imports pretrained models of other programs, and exports ours in their formats.
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

// The description of a pretrained decoder, independent of its format: Llama's architecture and its descendants, which
// differ in biases, windows, norms, positions, multipliers and caps.
struct PretrainedDecoder {
  std::string source;  // for error messages
  // Name, sizes, biases, caps and multipliers; with post_norm four norms per layer. GeGLU makes it a Gemma: embeddings
  // times √D. config() adds the layers and what they share.
  ModelConfig model;
  AttentionSettings attention{};  // of every layer, without the window; its rotary positions are the model's
  std::vector<std::optional<int64_t>> windows;  // per layer: the keys that a query sees, its own included; nullopt: all
  std::vector<std::optional<Rotary>>
      rotaries;                  // per layer: nullopt: no positions; empty: the attention's in all layers
  double rotary_fraction = 1.0;  // share of a head's channels that are rotated
  double logits_scaling = 1.0;   // divides the logits; here the last norm's weights

  bool gemma() const { return model.feed_forward.kind == FeedForwardKind::kGeglu; }
  int64_t layers() const { return static_cast<int64_t>(windows.size()); }
  std::optional<Rotary> rotary(int64_t layer) const { return rotaries.empty() ? attention.rotary : rotaries[layer]; }
  // Granite's block is x += m f(norm x), with m `residual`. Here the stream is x / m: the embedding's factor is divided
  // by m and the norms' epsilon by m², so that the norms give the same numbers, and no matrix changes.
  struct Multipliers {
    double embedding, residual, logits;  // the last one divides the logits
  };
  void set_multipliers(const Multipliers& multipliers);
  // Sets the context by which longrope's factors are chosen. Throws InputError if no layer has such positions.
  void want_context(int64_t context);
  // Our config of this decoder. Throws InputError for impossible sizes.
  ModelConfig config() const;
};

// One parameter: its name here and in the formats.
struct PretrainedWeight {
  std::string name;  // "embedding.weight", "layers.3.mixer.q.weight"
  std::string hugging_face, gguf;
  std::vector<int64_t> shape;

  bool is_norm() const { return name.find("norm") != std::string::npos; }
};

// Calls `visit` for every parameter, in the model's order.
void visit_weights(const PretrainedDecoder& decoder, const std::function<void(const PretrainedWeight&)>& visit);

// A pretrained model on disk, in one of the formats.
struct PretrainedSource {
  PretrainedDecoder decoder;
  std::string PretrainedWeight::* name;                     // the format's name of a parameter
  std::map<std::string, std::vector<int64_t>> shapes = {};  // every tensor of the source, by the format's name
  // Reads a parameter in our layout, in any floating type. The tensor must have the parameter's shape.
  std::function<Tensor(const PretrainedWeight&)> read = {};
  // Whether a tensor may be present and is ignored.
  std::function<bool(const std::string& name)> is_idle = {};
  std::string left_out = {};  // see PretrainedModel
};

// Opens a folder with config.json and model.safetensors, or shards with model.safetensors.index.json, of Llama or one of
// its descendants (decoders.h), as transformers 4 and 5 write them.
PretrainedSource open_hugging_face(const std::string& folder);

// Opens a GGUF file of the architectures llama (Llama, Mistral, SmolLM2), qwen2, qwen3, smollm3, granite, phi3, gemma,
// gemma2 and gemma3.
PretrainedSource open_gguf(const std::shared_ptr<const GgufFile>& file);

// Opens a GGUF file or a Hugging Face folder. Throws InputError for anything else.
PretrainedSource open_pretrained(const std::string& path);

struct PretrainedModel {
  ModelConfig config;
  NamedTensors weights;
  std::string left_out = {};  // the source's parts that were not read, such as vision; "": none
};
// Called with the number of parameters read so far, and of all.
using ReadProgress = std::function<void(int64_t done, int64_t total)>;
struct ReadWeights {
  // The type of all parameters; none: the source's types, with blocks of small integers as float32.
  std::optional<at::ScalarType> dtype = {};
  ReadProgress progress = {};
  // Called with each parameter, in place of keeping it in PretrainedModel::weights.
  std::function<void(const ModelConfig& config, const std::string& name, const Tensor& weight)> take = {};

  // Hands on one parameter in the wanted type.
  void put(PretrainedModel& model, const std::string& name, const Tensor& weight) const;
};
// Reads all parameters. Before the first one is read, throws InputError for parameters that are missing or misshapen
// and for unknown tensors.
PretrainedModel read_pretrained(const PretrainedSource& source, const ReadWeights& how = {});

// The model types that are read and are not descendants of Llama (renamed.h), for error messages.
std::string renamed_types();

// An opened pretrained model of any readable kind: its config is checked, its weights are not read yet. `context`: see
// PretrainedDecoder::want_context; nullopt: the model's.
struct PretrainedReader {
  int64_t vocabulary;
  std::function<PretrainedModel(const ReadWeights& how)> read;
};
PretrainedReader pretrained_reader(const std::string& path, std::optional<int64_t> context = {});

// Writes RUN/config.json, and RUN/last.safetensors.
void write_run_config(const ModelConfig& config, const std::string& run);
void write_pretrained(const PretrainedModel& model, const std::string& run, const std::string& origin);

// The Hugging Face description of one of our models: softmax or windows in every layer, rotary positions, RMS norms,
// SwiGLU (or GeGLU with everything else of Gemma-2). Throws InputError that names what does not fit.
PretrainedDecoder decoder_of(const ModelConfig& config);
// The "model_type" of the class that fits: "llama", "mistral", "qwen2", ... Throws like decoder_of().
std::string hugging_face_type(const PretrainedDecoder& decoder);

// Writes FOLDER/config.json (in the form of transformers 4, which 5 reads too) and model.safetensors, as the class that
// fits: gemma2, qwen2 (biases on q, k and v), mistral (windows) or llama.
void export_hugging_face(const LanguageModel& model, const std::string& folder, at::ScalarType dtype);

}  // namespace cortado
