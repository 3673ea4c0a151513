// The weights of a converted model: the source's, frozen, and what is learned.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cortado/convert/settings.h"
#include "cortado/models/checkpoint.h"
#include "cortado/nn/lora.h"
#include "cortado/train/run_folder.h"

namespace cortado {

// InputError: OUT is the folder that the weights come from.
void check_apart(const std::string& source, const std::string& out);

// What is learned for a layer's cache, by its number (convert/cache.h): the pairs' scores.
struct CacheNames {
  std::string weight, bias;
};
CacheNames cache_names(int64_t layer);

bool is_score(const std::string& name);
// Whether there is one among these.
bool have_scores(const NamedTensors& weights);

// Names of what the mixers have besides the softmax layers that they replace.
std::vector<std::string> names_of_new_weights(const LanguageModel& model);

// RUN's weights in their own types (map_weights), by the names that they have in the converted config.
TensorFile source_weights(const std::string& run, const std::string& which, const ModelConfig& source,
                          const ModelConfig& converted);

// A model of a converted config with the source's weights in `dtype`; what its mixers have besides starts as they say,
// in float32, drawn by `seed`. `frozen`: what the layers' matrices are kept in that were the source's; without
// derivatives unless kPlain. InputError: weights that don't fit.
std::shared_ptr<LanguageModel> converted_model(const ModelConfig& config, const TensorFile& source, int64_t seed,
                                               const at::TensorOptions& options,
                                               WeightFormat frozen = WeightFormat::kPlain);

// A checkpoint of `config`: the source's weights in their own types, and what was learned: `learned` beside them or in
// their place, and adapters, which are merged.
void save_converted(const ModelConfig& config, const TensorFile& source, const NamedTensors& learned,
                    const NamedTensors& adapters, const LoraOptions& lora, const std::string& path,
                    const std::map<std::string, std::string>& metadata);

// What a conversion learned, as a file of its own: with it, anybody who has the source model has the converted one.
struct Learned {
  ConversionSettings conversion;
  std::string source;     // the fingerprint of the weights that it belongs to
  NamedTensors weights;   // by their names in the converted model: beside the source's or in their place
  NamedTensors adapters;  // not merged; may be empty
  LoraOptions lora;
};

// Numbers are rounded to float16 where it can hold them all: next to the weights that they were learned on, which are
// rounded more, that is nothing, and the file is half as long.
void save_learned(const std::string& path, const Learned& learned);
// InputError: damaged, or another kind of file.
Learned load_learned(const std::string& path);
// InputError naming `path`: learned on other weights than those of this fingerprint, or not by a model of this config.
void check_learned(const Learned& learned, const std::string& path, const ModelConfig& converted,
                   const std::string& fingerprint);

struct ApplyRequest {
  std::string source;  // a run with softmax layers
  std::string which = "best";
  std::string learned;  // the file
  std::string out;
  FolderUse use = FolderUse::kFresh;
  Json settings = Json::object();  // of the mixers, in place of the file's: {"cache": 128}
};

// OUT becomes the converted run: config.json, tokenizer/, last.safetensors with the adapters merged, and the file
// itself. InputError: learned on other weights, a folder in use; nothing has changed then.
void apply_learned(const ApplyRequest& request);

}  // namespace cortado
