// Models on disk: weights as safetensors, and a small JSON beside them.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "cortado/formats/safetensors.h"
#include "cortado/models/language_model.h"
#include "cortado/models/memory.h"

namespace cortado {

// RUN/config.json            the model's config (vocabulary filled in)
// RUN/tokenizer/...          the tokenizer (tokenizers/tokenizer.h)
// RUN/best.safetensors, RUN/last.safetensors    weights, with metadata
// RUN/train.json + RUN/trainer.safetensors ...  what --resume needs (train/)
// RUN/metrics.jsonl
// Every file is written beside its place and renamed into it.

// Weights only, with adapters merged into them (nn/lora.h); not those of a model with a narrower weight format
// (InputError). Metadata: "format": "cortado-model", "config_hash", "step", ... plus what is given.
void save_weights(const Backbone& model, const std::string& path,
                  const std::map<std::string, std::string>& metadata = {});

// The same of weights that are in no model: named_weights() of a model of this config, of any floating type. Returns
// the fingerprint.
std::string save_weights(const ModelConfig& config, NamedTensors weights, const std::string& path,
                         const std::map<std::string, std::string>& metadata = {});

// Those of a model of this config. Every parameter must be there with its shape, none too many: InputError names the
// first that is not ("checkpoint of another model"). Where the model is that of `config` with another memory, what such a
// model lacks is left out. Returns the metadata.
std::map<std::string, std::string> load_weights(const ModelConfig& config, Backbone& model, const std::string& path);

// RUN's weights in their own types, as views of the file (map_safetensors); `config` is the run's. `which` as below.
TensorFile map_weights(const std::string& run, const std::string& which, const ModelConfig& config);

// Gives back the memory of what was read of it; of shards the system does that when it needs it.
void release(const TensorFile& file, const Tensor& read);

// The config of RUN or of a config file.
ModelConfig read_config(const std::string& run);

// Random weights; of the class that the config's "head" asks for.
std::shared_ptr<Backbone> make_backbone(const ModelConfig& config);

// Opens RUN (a folder: `which` is "best" or "last", best falling back to last) or a config file (random weights, only
// if `allow_random`).
struct OpenOptions {
  std::string which = "best";
  at::Device device = at::kCPU;
  at::ScalarType dtype = at::kFloat;
  bool allow_random = false;          // a config file is enough: random weights
  std::optional<Memory> memory = {};  // other than the config's (models/memory.h)
  // What the matrices are kept in; read tensor by tensor, so that nothing takes more memory than the model.
  WeightFormat weights = WeightFormat::kPlain;
};
// Neither, a config without vocabulary, missing or damaged weights: InputError.
std::shared_ptr<Backbone> open_backbone(const std::string& run, const OpenOptions& options = {});
// The same; a classifier: InputError.
std::shared_ptr<LanguageModel> open_model(const std::string& run, const OpenOptions& options = {});

}  // namespace cortado
