// Helpers of the readers in architectures/ whose models are descendants of Llama (PretrainedDecoder): transformers'
// configs, with the defaults of its classes.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "cortado/base/json.h"
#include "cortado/models/pretrained/pretrained.h"
#include "cortado/models/pretrained/rope.h"

namespace cortado {

// A value of "model_type" in config.json, and the reader of such configs. `decoder` has its source and name already.
struct DecoderFamily {
  std::string type;
  std::function<void(JsonReader& config, PretrainedDecoder& decoder)> read;
  // Gives the tensors the names that Llama's have, if the family has others.
  std::function<void(const PretrainedDecoder& decoder, std::map<std::string, Tensor>& tensors)> rename = {};
};
// architectures/
std::vector<DecoderFamily> llama_families();
std::vector<DecoderFamily> gemma_families();
std::vector<DecoderFamily> phi3_families();

// The values of keys that a config lacks.
struct DecoderDefaults {
  std::optional<int64_t> vocabulary = {}, heads = {};  // nullopt: the config must say them
  std::optional<int64_t> kv_heads = {};                // nullopt: as many as heads
  std::optional<int64_t> head_dim = {};                // nullopt: hidden_size / num_attention_heads
  double norm_eps = 1e-6;
  bool tied = false;
};

// Reads all sizes, the norms' epsilon and whether the head is tied.
void read_decoder_sizes(JsonReader& config, PretrainedDecoder& decoder, const DecoderDefaults& defaults = {});
// Reads "attention_bias", which all four maps of the attention have or none.
void read_attention_bias(JsonReader& config, PretrainedDecoder& decoder);
// Reads "layer_types" of transformers 5, or asks `is_sliding` for each layer's number.
void read_windows(JsonReader& config, PretrainedDecoder& decoder, std::optional<int64_t> window,
                  const std::function<bool(int64_t)>& is_sliding);
// Throws InputError if the activation is not `wanted`.
void expect_activation(JsonReader& config, const std::string& wanted);

}  // namespace cortado
