// Rotary positions as the metadata of GGUF files give them.
#pragma once

#include <string>

#include "cortado/base/json.h"
#include "cortado/formats/gguf/file.h"
#include "cortado/nn/rotary/rotary.h"

namespace cortado {

// The keys "ARCHITECTURE.rope..." of a file. Each is read as llama.cpp reads it.
struct GgufRope {
  const GgufFile& file;
  JsonReader& metadata;
  std::string architecture;
  int64_t context;  // the model's; 0: unknown

  double theta() const { return metadata.number(key("rope.freq_base"), 1.0, 1e12, 1e4); }
  // The scaling that the metadata name: none, linear or yarn. Longrope's lists are tensors, so it is none here.
  RotaryScaling scaling() const;
  // The context before it was stretched. Throws InputError if it is less than `least`.
  int64_t original_context(int64_t least) const;
  double attention_factor() const { return metadata.number(key("rope.scaling.attn_factor"), 1e-9, 1e9, 1.0); }

 private:
  std::string key(const char* name) const { return architecture + "." + name; }
  void read_yarn(RotaryScaling& scaling) const;
};

// Tensors of divisors of the frequencies: of Llama 3, and of longrope for short and for long texts.
inline constexpr const char *kRopeFactors = "rope_freqs.weight", *kShortFactors = "rope_factors_short.weight",
                            *kLongFactors = "rope_factors_long.weight";

}  // namespace cortado
