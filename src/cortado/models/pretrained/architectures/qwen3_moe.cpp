// Qwen3-MoE of transformers: Qwen3's attention, and experts in all layers or some.
#include "cortado/models/pretrained/architectures/attention.h"
#include "cortado/models/pretrained/architectures/layered.h"
#include "cortado/models/pretrained/rope.h"

namespace cortado {
namespace {

RenamedFeedForward qwen3_experts(JsonReader& config, int64_t dim) {
  // transformers 5 calls it num_local_experts inside.
  const int64_t local = config.integer("num_local_experts", 1, 65536, 128);
  const int64_t count = config.integer("num_experts", 1, 65536, local);
  const int64_t hidden = config.integer("moe_intermediate_size", 1, kWidest, 768);
  RenamedFeedForward read;
  read.linear("feed_forward.router", "mlp.gate", count, dim);
  read.experts("mlp.experts", {count, dim, hidden});
  read.settings = {{"type", "experts"},
                   {"dim", hidden},
                   {"experts", count},
                   {"per_token", config.integer("num_experts_per_tok", 1, count, std::min<int64_t>(8, count))},
                   {"normalized", config.boolean("norm_topk_prob", false)}};
  return read;
}

RenamedModel read_qwen3_moe(JsonReader& config) {
  LayeredModel read = read_layered(config, {.context = 32768});
  const int64_t dim = read.sizes.dim;
  write_rope(read_whole_rope(config), read.json);
  expect(config, "use_sliding_window", false);
  RenamedMixer attention = read_attention(config, dim, {.key_heads = 4});
  add_qk_norms(attention, read.norm_eps());
  const std::vector<bool> mixed = read_expert_layers(config, read.sizes.layers);
  const RenamedFeedForward dense = swiglu("mlp", dim, config.integer("intermediate_size", 1, kWidest, 6144)),
                           experts = qwen3_experts(config, dim);
  for (const bool here : mixed) read.add(attention, "self_attn", here ? experts : dense);
  return std::move(read).model(config);
}

}  // namespace

std::vector<Architecture> qwen3_moe_architectures() { return {{"qwen3_moe", read_qwen3_moe}}; }

}  // namespace cortado
