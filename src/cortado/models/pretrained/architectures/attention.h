// Softmax attention with the settings that most configs share, for the readers of models that contain it.
#pragma once

#include "cortado/models/pretrained/renamed.h"

namespace cortado {

// Reads "num_attention_heads", "num_key_value_heads", "head_dim" and "attention_bias"; maps q_proj, k_proj, v_proj and
// o_proj. `key_heads`: the number of key heads if the config names none; 0: as many as heads.
RenamedMixer read_attention(JsonReader& config, int64_t dim, int64_t key_heads);

}  // namespace cortado
