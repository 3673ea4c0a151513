// Helpers for reading the metadata of GGUF files.
#pragma once

#include <algorithm>
#include <span>

#include "cortado/base/error.h"
#include "cortado/models/pretrained/gguf_names.h"
#include "cortado/models/pretrained/gguf_renamed.h"

namespace cortado {

inline constexpr int64_t kLargest = int64_t{1} << 31;

// The metadata of an architecture, and the tensors that say what the metadata do not.
struct GgufKeys {
  const GgufFile& file;
  JsonReader metadata;
  std::string architecture;
  int64_t layers = 0;

  explicit GgufKeys(const GgufFile& of) : file(of), metadata(of.metadata()) {
    architecture = metadata.text("general.architecture");
  }
  std::string key(const std::string& name) const { return architecture + "." + name; }
  int64_t size(const char* name, std::optional<int64_t> fallback = {}) {
    return metadata.integer(key(name), 0, kLargest, fallback);
  }
  void copy(std::span<const GgufName> names, Json& config) {
    for (const auto& [ours, theirs] : names) config[theirs] = size(ours);
  }
  // A factor; 0 is a file's word for none.
  std::optional<double> factor(const char* name) {
    const double said = metadata.number(key(name), 0.0, 1e6, 0.0);
    return said > 0 ? std::optional(said) : std::nullopt;
  }
  bool has(int64_t layer, const char* tensor) const { return file.find(concat("blk.", layer, ".", tensor)) != nullptr; }
  // A list with a number per layer, or one number for all of them.
  std::vector<int64_t> per_layer(const char* name) {
    if (!metadata.any(key(name)).is_string()) return std::vector<int64_t>(layers, size(name));
    const std::vector<double> numbers = file.numbers(key(name), /*whole=*/true);
    file.fail_if(std::ssize(numbers) < layers, "has \"", key(name), "\" of ", numbers.size(), " layers, expected ",
                 layers);
    return {numbers.begin(), numbers.begin() + layers};
  }
  // Which layers are recurrent: a list, or all but every so many-th.
  std::vector<bool> recurrent_layers(int64_t usual_interval) {
    const std::string name = key("attention.recurrent_layers");
    std::vector<bool> list = file.flags(name);
    const int64_t interval = std::max<int64_t>(1, size("full_attention_interval", usual_interval));
    file.fail_if(!list.empty() && std::ssize(list) < layers, "has \"", name, "\" of ", list.size(),
                 " layers, expected ", layers);
    if (list.empty()) {
      for (int64_t i = 0; i < layers; ++i) list.push_back((i + 1) % interval != 0);
    }
    list.resize(layers);
    return list;
  }
  // The number of times that `width` goes into the metadata's number.
  int64_t times(const char* name, int64_t width) {
    const int64_t whole = size(name);
    file.fail_if(width < 1 || whole < width || whole % width != 0, "has \"", key(name), "\" ", whole,
                 ", which is no multiple of ", width);
    return whole / width;
  }
};

// The number of tokens, by the embedding's rows.
int64_t gguf_vocabulary_size(const GgufFile& file);
// Throws InputError unless the heads of keys and values have equally many channels, an even number.
void expect_gguf_heads(const GgufFile& file, int64_t key, int64_t value);

// The first layer that is (or is not) attention; the number of layers if none is.
inline int64_t first_of(const std::vector<bool>& attends, bool attention) {
  return std::find(attends.begin(), attends.end(), attention) - attends.begin();
}

// The heads of hybrids: layers without key heads are recurrent.
std::vector<bool> read_gguf_hybrid_heads(GgufKeys& keys, Json& config);
void read_gguf_rope(GgufKeys& keys, int64_t head, GgufConfig& read);
// The sizes of heads, which must be equal for keys and values.
int64_t read_gguf_head(GgufKeys& keys, Json& config);

// A file's number of the function that gives experts their scores.
inline constexpr int64_t kGgufSigmoid = 2;

// Readers of architectures, in gguf_config_experts.cpp.
void read_gguf_nemotron_h(GgufKeys& keys, GgufConfig& read);
void read_gguf_kimi_linear(GgufKeys& keys, GgufConfig& read);
void read_gguf_minimax(GgufKeys& keys, GgufConfig& read);
// gguf_rwkv.cpp
void read_gguf_rwkv6(GgufKeys& keys, GgufConfig& read);
void read_gguf_rwkv7(GgufKeys& keys, GgufConfig& read);

}  // namespace cortado
