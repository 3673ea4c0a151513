// A pretrained model on disk, of one format or another.
#pragma once

#include <ATen/ATen.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cortado/formats/gguf/file.h"
#include "cortado/models/pretrained/decoder.h"

namespace cortado {

using at::Tensor;

class PretrainedSource {
 public:
  virtual ~PretrainedSource() = default;

  const PretrainedDecoder& decoder() const { return decoder_; }
  // The format's name of a parameter.
  std::string name_of(const PretrainedWeight& weight) const { return names_.of(weight); }
  // Every tensor of the source by the format's name.
  const std::map<std::string, std::vector<int64_t>>& shapes() const { return shapes_; }
  // The parameter as our decoder has it, in whatever floating type; its shape must be the tensor's.
  virtual Tensor read(const PretrainedWeight& weight) const = 0;
  // Tensors that may be there and are not read.
  virtual bool is_idle(const std::string& name) const = 0;

 protected:
  PretrainedDecoder decoder_;
  WeightNames names_;
  std::map<std::string, std::vector<int64_t>> shapes_;
};

// A folder with config.json, and model.safetensors or its shards with model.safetensors.index.json: LlamaForCausalLM,
// Mistral, Qwen2 and Gemma-2, as transformers 4 and 5 write them.
std::unique_ptr<PretrainedSource> open_hugging_face(const std::string& folder);

// transformers' names of parameters.
WeightNames hugging_face_names(bool gemma);

// A GGUF file of the architectures llama (Llama, Mistral, SmolLM2), qwen2 and gemma2.
std::unique_ptr<PretrainedSource> open_gguf(const std::string& path);
std::unique_ptr<PretrainedSource> open_gguf(std::shared_ptr<const GgufFile> file);

}  // namespace cortado
