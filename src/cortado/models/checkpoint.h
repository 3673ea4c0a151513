// Models on disk: weights as safetensors, and a small JSON file with them.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "cortado/formats/safetensors.h"
#include "cortado/models/language_model.h"
#include "cortado/models/memory.h"

namespace cortado {

// The files of a run:
// RUN/config.json            the model's config (vocabulary filled in)
// RUN/tokenizer/...          the tokenizer (tokenizers/tokenizer.h)
// RUN/best.safetensors, RUN/last.safetensors    weights, with metadata
// RUN/train.json + RUN/trainer.safetensors ...  what --resume needs (train/)
// RUN/metrics.jsonl
// Every file is written under a temporary name and then renamed.

// Saves the weights, with adapters merged into them (nn/lora.h). Throws InputError for a model with a narrower weight
// format. The metadata has "format": "cortado-model", "config_hash", "fingerprint" and the given entries.
void save_weights(const Backbone& model, const std::string& path,
                  const std::map<std::string, std::string>& metadata = {});

// As above for weights outside a model: named_weights() of a model with this config, of any floating type. Returns the
// fingerprint.
std::string save_weights(const ModelConfig& config, NamedTensors weights, const std::string& path,
                         const std::map<std::string, std::string>& metadata = {});

// Loads the weights of a model with this config. The file must have every parameter with its shape and no others;
// otherwise throws InputError for the first that differs. If `model` is the config's model with another memory, weights
// that it does not have are ignored. Returns the metadata.
std::map<std::string, std::string> load_weights(const ModelConfig& config, Backbone& model, const std::string& path);

// RUN's weights in their own types, as views of the mapped file (map_safetensors). `config` is the run's; `which` as in
// OpenOptions.
TensorFile map_weights(const std::string& run, const std::string& which, const ModelConfig& config);

// An entry of a file's metadata; empty if there is none.
std::string metadata_entry(const TensorFile& file, const char* key);

// Tells the system that the mapped memory of `read` is no longer needed. Shards are not released here; the system does
// it when it needs memory.
void release(const TensorFile& file, const Tensor& read);

// Reads the config of a run's folder or of a config file.
ModelConfig read_config(const std::string& run);

// A model with random weights, of the class that the config's "head" names.
std::shared_ptr<Backbone> make_backbone(const ModelConfig& config);

// How to open RUN: a folder (`which` is "best" or "last"; best falls back to last), or with `allow_random` a config
// file, which gives random weights.
struct OpenOptions {
  std::string which = "best";
  at::Device device = at::kCPU;
  at::ScalarType dtype = at::kFloat;
  bool allow_random = false;          // accepts a config file, which gives random weights
  std::optional<Memory> memory = {};  // replaces the config's memory (models/memory.h)
  // The format in which matrices are stored. Weights are read tensor by tensor, so loading needs no more memory than
  // the model.
  WeightFormat weights = WeightFormat::kPlain;
};
// The format in which to open RUN for inference: the one that is wanted, or, if none is and RUN has its weights in 8 or
// 4 bits only (narrow_weights.h), that one.
WeightFormat format_to_infer(const std::string& run, WeightFormat wanted);
// Throws InputError if `run` is neither, for a config without vocabulary, and for missing or damaged weights.
std::shared_ptr<Backbone> open_backbone(const std::string& run, const OpenOptions& options = {});
// As open_backbone(), for language models. Throws InputError for a classifier.
std::shared_ptr<LanguageModel> open_model(const std::string& run, const OpenOptions& options = {});

}  // namespace cortado
