// The weights of a model in 8 or 4 bits as a file, RUN/last.int8.safetensors or RUN/last.int4.safetensors: for inference
// only. It has what the memory has (nn/narrow/weight.h), so that opening it converts nothing, and processes share it.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "cortado/models/backbone.h"

namespace cortado {

// The format of such a file in a run's folder; nullopt: it has none.
std::optional<WeightFormat> narrow_format_of(const std::string& run);
std::string narrow_weights_path(const std::string& run, WeightFormat format);

// Loads the weights of a model with this config, whose format is that of the file. Errors and other memories as in
// load_weights().
void load_narrow_weights(const ModelConfig& config, Backbone& model, const std::string& path);

// Collects a model's parameters one by one, so that only one of them is in memory in its own type.
class NarrowWeights {
 public:
  explicit NarrowWeights(WeightFormat format);  // kInt8 or kInt4
  void take(const ModelConfig& config, const std::string& name, const Tensor& weight);
  // Writes the file of `run`; "origin" is an entry of its metadata.
  void save(const std::string& run, const std::string& origin) const;
  int64_t bytes() const;

 private:
  WeightFormat format_;
  std::shared_ptr<Backbone> model_;  // null until the first parameter has come
  std::map<std::string, MatrixModule*> matrices_;
};

}  // namespace cortado
