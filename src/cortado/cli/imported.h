// Makes runs from pretrained models of other programs, in a folder that the user names or in a cache folder.
//
//   CORTADO_CACHE   the cache folder; default $XDG_CACHE_HOME/cortado/models or ~/.cache/cortado/models
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cortado/generate/defaults.h"
#include "cortado/models/pretrained/pretrained.h"
#include "cortado/tokenizers/tokenizer.h"

namespace cortado {

// Whether `path` is a GGUF file or a Hugging Face model's folder, which `cortado import` can read.
bool is_pretrained(const std::string& path);

// Facts about an imported model, for messages.
struct Imported {
  int64_t layers = 0, parameters = 0, bytes = 0;
  bool tokenizer = false;
  std::string left_out = {};    // the source's parts that were not read
  std::string no_chat = {};     // why a model with a chat template cannot chat here
  std::string summary() const;  // "30 layers, 134,515,008 parameters, 513.1 MiB"
  // What is worth a line each: parts that were left out, and why there is no chat.
  std::vector<std::string> notices() const;
};

// A pretrained model, opened and checked, whose weights are not read yet.
class ModelImport {
 public:
  // `context`: the tokens that a text may have, which choose longrope's factors; nullopt: the model's.
  explicit ModelImport(const std::string& source, std::optional<int64_t> context = {});
  // Writes a run to the folder `out`, which must be new or empty, and shows a progress bar. `dtype` is the type of the
  // weights; none: their own. With kInt8 or kInt4 the run has the weights in that format only (narrow_weights.h).
  Imported write(const std::string& out, std::optional<at::ScalarType> dtype,
                 WeightFormat format = WeightFormat::kPlain) const;

 private:
  std::string source_;
  PretrainedReader reader_;
  std::shared_ptr<Tokenizer> tokenizer_;  // null if there is none
  SamplingChoice sampling_;
};

// Returns the run for a path that a user has given. A run's path is returned as it is. A pretrained model is imported
// into the cache folder the first time, and again when its files or this program have changed. Throws InputError if the
// path is neither. A command that opens the model in 8 or 4 bits gives that format: the cache then has it so.
std::string run_of(const std::string& path, WeightFormat format = WeightFormat::kPlain);

}  // namespace cortado
