// Helpers for describing our models as GGUF files. One of our models is described as a folder's config, and the file's
// metadata are put beside it.
#pragma once

#include <algorithm>
#include <span>

#include "cortado/models/pretrained/gguf_export.h"
#include "cortado/models/pretrained/gguf_names.h"
#include "cortado/models/pretrained/gguf_renamed.h"

namespace cortado {

// A folder's config of one of our models, and the file's metadata.
struct RenamedFile {
  const ModelConfig& ours;
  GgufModel file;
  Json config = {};
  GgufLayout layout = {};
  std::vector<GgufTensorOf> more = {};  // tensors that are none of our weights
  // Where factors of ours go into the file's weights: the model without them, and the factor of each weight.
  std::optional<ModelConfig> plain = {};
  std::function<double(const std::string& ours)> factor = {};

  void put(std::span<const GgufName> names) {
    for (const auto& [key, theirs] : names) file.put_whole(key, config.at(theirs).get<int64_t>());
  }
};

// The first layer with this mixer.
inline const Json& layer_of(const ModelConfig& config, const std::string& mixer) {
  return *std::ranges::find_if(config.layers, [&](const Json& layer) { return layer["mixer"] == mixer; });
}

inline int64_t whole_of(const Json& mixer, const char* key, int64_t usual) { return mixer.value(key, usual); }

inline std::vector<int32_t> per_layer(const ModelConfig& config, int64_t attention, int64_t others) {
  std::vector<int32_t> list;
  for (const Json& layer : config.layers)
    list.push_back(static_cast<int32_t>(layer["mixer"] == "softmax" ? attention : others));
  return list;
}

// The attention of hybrids.
void put_attention(RenamedFile& made);
void expect_whole_width(const RenamedFile& made);
void put_rope_of(RenamedFile& made);
// The layers of hybrids without key heads are recurrent.
void put_hybrid_heads(RenamedFile& made);

// Architectures: gguf_export_mamba.cpp.
void describe_mamba(RenamedFile& made);
void describe_mamba2(RenamedFile& made);
void describe_jamba(RenamedFile& made);
void describe_granite_hybrid(RenamedFile& made);
// gguf_export_hybrids.cpp
void describe_lfm2(RenamedFile& made);
void describe_olmo2(RenamedFile& made);
void describe_olmo3(RenamedFile& made);
void describe_qwen3_moe(RenamedFile& made);
void describe_qwen3_5(RenamedFile& made);
// gguf_export_experts.cpp
void describe_nemotron_h(RenamedFile& made);
void describe_kimi_linear(RenamedFile& made);
void describe_minimax(RenamedFile& made);
void describe_gpt_oss(RenamedFile& made);
// gguf_export_falcon.cpp
void describe_falcon_h1(RenamedFile& made);
// gguf_export_rwkv.cpp
void describe_rwkv6(RenamedFile& made);
void describe_rwkv7(RenamedFile& made);

}  // namespace cortado
