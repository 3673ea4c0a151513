// Pretrained models of other programs into the form that everything here reads.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "cortado/models/pretrained/source.h"

namespace cortado {

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

}  // namespace cortado
