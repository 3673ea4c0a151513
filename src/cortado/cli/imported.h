// Pretrained models of other programs, as runs: where the user says, or in a folder of our own.
//
//   CORTADO_CACHE   that folder; default $XDG_CACHE_HOME/cortado/models or ~/.cache/cortado/models
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <optional>
#include <string>

#include "cortado/generate/defaults.h"
#include "cortado/models/pretrained/pretrained.h"
#include "cortado/tokenizers/tokenizer.h"

namespace cortado {

// Whether it is a GGUF file or the folder of a Hugging Face model, which `cortado import` reads.
bool is_pretrained(const std::string& path);

// What a model has become: for the line that tells of it.
struct Imported {
  int64_t layers = 0, parameters = 0, bytes = 0;
  bool tokenizer = false;
  std::string no_chat = {};     // why it cannot chat here, though it was taught to
  std::string summary() const;  // "30 layers, 134,515,008 parameters, 513.1 MiB"
};

// A pretrained model, opened and checked: its weights are not read yet.
class ModelImport {
 public:
  explicit ModelImport(const std::string& source);
  // A run in `out`, new or empty, with a progress bar. `dtype`: of the weights; none: their own.
  Imported write(const std::string& out, std::optional<at::ScalarType> dtype) const;

 private:
  std::string source_;
  PretrainedReader reader_;
  std::shared_ptr<Tokenizer> tokenizer_;  // null: none
  SamplingChoice sampling_;
};

// The run that a command is to open where a user has given `path`: the path itself; or, of a pretrained model, a run in our
// own folder, which is made the first time, and again when the model's files, or this program, have changed. InputError:
// neither of them.
std::string run_of(const std::string& path);

}  // namespace cortado
