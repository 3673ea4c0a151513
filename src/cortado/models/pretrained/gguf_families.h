// The GGUF architectures of Llama and its descendants, for reading and writing.
#pragma once

#include <string_view>

#include "cortado/models/pretrained/pretrained.h"

namespace cortado {

struct GgufFamily {
  std::string_view architecture;
  // A head's rows of q and k are ordered as pairs (0, d/2), (1, d/2 + 1), ..., which are rotated as neighbours.
  bool pairs = false;
  bool geglu = false, post_norm = false, qk_norm = false;
  bool joint = false;  // queries, keys and values are one tensor, and so are gate and up
  // Every layer of this number has full attention and the others have windows, unless the file names another number.
  // 0: all layers have windows or none.
  int64_t window_period = 0;
};
inline constexpr GgufFamily kGgufFamilies[] = {
    {.architecture = "llama", .pairs = true},
    {.architecture = "qwen2"},
    {.architecture = "qwen3", .qk_norm = true},
    {.architecture = "smollm3", .pairs = true},
    {.architecture = "granite", .pairs = true},
    {.architecture = "phi3", .joint = true},
    {.architecture = "gemma", .geglu = true},
    {.architecture = "gemma2", .geglu = true, .post_norm = true, .window_period = 2},
    {.architecture = "gemma3", .geglu = true, .post_norm = true, .qk_norm = true, .window_period = 6}};

// Null for other architectures.
inline const GgufFamily* find_gguf_family(std::string_view architecture) {
  for (const GgufFamily& family : kGgufFamilies) {
    if (architecture == family.architecture) return &family;
  }
  return nullptr;
}

// The number whose square root divides the scores. Files of Gemma-2 and Gemma-3 do not say it: their largest models, of
// 46 and of 62 layers, have D/H.
inline int64_t gguf_gemma_divisor(const GgufFamily& family, const PretrainedDecoder& decoder) {
  const bool largest = decoder.layers() == (family.qk_norm ? 62 : 46);
  return largest ? decoder.model.dim / decoder.attention.heads : decoder.attention.head_dim;
}

// SmolLM3 has no positions in every fourth layer, which files do not say.
inline constexpr int64_t kBarePeriod = 4;

}  // namespace cortado
