// Softmax attention with the settings that most configs share, for the readers of models that contain it.
#pragma once

#include <optional>

#include "cortado/models/pretrained/renamed.h"

namespace cortado {

// Values that a config may omit.
struct AttentionDefaults {
  int64_t key_heads = 0;                 // 0: as many as heads
  std::optional<int64_t> head_dim = {};  // nullopt: hidden_size / num_attention_heads
  bool bias = false;
};

// Reads "num_attention_heads", "num_key_value_heads", "head_dim" and "attention_bias"; maps q_proj, k_proj, v_proj and
// o_proj.
RenamedMixer read_attention(JsonReader& config, int64_t dim, const AttentionDefaults& usual);

// Adds norms of queries and keys per head, q_norm and k_norm.
void add_qk_norms(RenamedMixer& mixer, double norm_eps);

}  // namespace cortado
