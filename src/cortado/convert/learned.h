// What a conversion learned, as a file of its own: with it, anybody who has the source model has the converted one.
#pragma once

#include <string>

#include "cortado/convert/settings.h"
#include "cortado/models/checkpoint.h"
#include "cortado/nn/lora.h"
#include "cortado/train/run_folder.h"

namespace cortado {

struct Learned {
  ConversionSettings conversion;
  std::string source;    // the fingerprint of the weights that it belongs to
  NamedTensors weights;  // by their names in the converted model: beside the source's or in their place
  NamedLora adapters;    // not merged; may be empty
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
};

// OUT becomes the converted run: config.json, tokenizer/, last.safetensors with the adapters merged, and the file
// itself. InputError: learned on other weights, a folder in use; nothing has changed then.
void apply_learned(const ApplyRequest& request);

}  // namespace cortado
