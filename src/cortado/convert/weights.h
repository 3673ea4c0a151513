// The weights of a converted model: the source's, which are frozen, and learned ones.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cortado/convert/settings.h"
#include "cortado/models/checkpoint.h"
#include "cortado/nn/lora.h"
#include "cortado/train/run_folder.h"

namespace cortado {

// Throws InputError if OUT is the folder that the weights come from.
void check_apart(const std::string& source, const std::string& out);

// Names of the learned scores of layer `layer`'s cache (convert/cache.h).
struct CacheNames {
  std::string weight, bias;
};
CacheNames cache_names(int64_t layer);

bool is_score(const std::string& name);
// Whether there is a score among these.
bool have_scores(const NamedTensors& weights);

// Names of the parameters that the mixers have in addition to those of the softmax layers that they replace.
std::vector<std::string> names_of_new_weights(const LanguageModel& model);

// RUN's weights in their own types (map_weights), with the names of the converted config.
TensorFile source_weights(const std::string& run, const std::string& which, const ModelConfig& source,
                          const ModelConfig& converted);

// A model of a converted config, with the source's weights in options' type and device. New parameters start as their
// mixers initialise them, in float32, drawn with `seed`. `frozen` is the format of the layers' matrices from the
// source; other formats than kPlain have no gradient. Throws InputError for weights that do not fit.
std::shared_ptr<LanguageModel> converted_model(const ModelConfig& config, const TensorFile& source, int64_t seed,
                                               const at::TensorOptions& options,
                                               WeightFormat frozen = WeightFormat::kPlain);

// Writes a checkpoint of `config`: the source's weights in their own types, with `learned` weights added or replacing
// them, and adapters merged.
void save_converted(const ModelConfig& config, const TensorFile& source, const NamedTensors& learned,
                    const NamedTensors& adapters, const LoraOptions& lora, const std::string& path,
                    const std::map<std::string, std::string>& metadata);

// The learned weights of a conversion as a separate file. With it, anybody who has the source model can make the
// converted one.
struct Learned {
  ConversionSettings conversion;
  std::string source;     // fingerprint of the source's weights
  NamedTensors weights;   // by their names in the converted model; added to the source's weights or replacing them
  NamedTensors adapters;  // not merged; may be empty
  LoraOptions lora;
};

// Rounds to float16 all tensors that it can represent. This is small compared with the rounding of the weights that
// they were learned on, and halves the file.
void save_learned(const std::string& path, const Learned& learned);
// Throws InputError for damaged files and files of another kind.
Learned load_learned(const std::string& path);
// Throws InputError naming `path` if the weights were learned on others than those of this fingerprint, or do not fit a
// model of this config.
void check_learned(const Learned& learned, const std::string& path, const ModelConfig& converted,
                   const std::string& fingerprint);

struct ApplyRequest {
  std::string source;  // a run with softmax layers
  std::string which = "best";
  std::string learned;  // learned.safetensors
  std::string out;
  FolderUse use = FolderUse::kFresh;
  Json settings = Json::object();  // replace the mixers' settings of the file: {"cache": 128}
};

// Makes OUT the converted run: config.json, tokenizer/, last.safetensors with adapters merged, and the file itself.
// Throws InputError for weights learned on another source and for a folder in use; nothing is changed then.
void apply_learned(const ApplyRequest& request);

}  // namespace cortado
