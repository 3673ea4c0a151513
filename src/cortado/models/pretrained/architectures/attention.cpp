#include "cortado/models/pretrained/architectures/attention.h"

namespace cortado {

RenamedMixer read_attention(JsonReader& config, int64_t dim, const AttentionDefaults& usual) {
  const int64_t heads = config.integer("num_attention_heads", 1, kMostHeads, 32);
  const bool all = config.says("num_key_value_heads") || usual.key_heads == 0;
  const int64_t key_heads = config.integer("num_key_value_heads", 1, kMostHeads, all ? heads : usual.key_heads);
  // null: D / H, as where the class has no default.
  const bool share = config.says("head_dim") || !usual.head_dim;
  config.fail_if(share && !config.has("head_dim") && dim % heads != 0, "hidden_size (", dim,
                 ") is not divisible by num_attention_heads (", heads, ")");
  config.fail_if(heads % key_heads != 0, "num_attention_heads (", heads, ") is not divisible by num_key_value_heads (",
                 key_heads, ")");
  const int64_t head =
      config.integer("head_dim", 1, 65536, share ? std::max<int64_t>(1, dim / heads) : *usual.head_dim);
  const bool bias = config.boolean("attention_bias", usual.bias);
  RenamedMixer mixer({{"mixer", "softmax"}, {"heads", heads}, {"kv_heads", key_heads}, {"head_dim", head}});
  if (bias) mixer.settings["bias"] = true;
  mixer.linear("q", "q_proj", heads * head, dim, bias);
  for (const char* name : {"k", "v"}) mixer.linear(name, concat(name, "_proj"), key_heads * head, dim, bias);
  mixer.linear("o", "o_proj", dim, heads * head, bias);
  return mixer;
}

void add_qk_norms(RenamedMixer& mixer, double norm_eps) {
  mixer.settings.update({{"qk_norm", true}, {"norm_eps", norm_eps}});
  for (const char* name : {"q_norm", "k_norm"}) mixer.norm(name, name, mixer.settings["head_dim"]);
}

}  // namespace cortado
