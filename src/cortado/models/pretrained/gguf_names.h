// Whole numbers of configs that GGUF files and transformers' config.json have under different names, for reading and
// writing.
#pragma once

namespace cortado {

struct GgufName {
  const char *file, *folder;  // "ssm.state_size", "state_size"
};

inline constexpr GgufName kMambaNames[] = {{"ssm.inner_size", "intermediate_size"},
                                           {"ssm.state_size", "state_size"},
                                           {"ssm.conv_kernel", "conv_kernel"},
                                           {"ssm.time_step_rank", "time_step_rank"}};
inline constexpr GgufName kMamba2Names[] = {{"ssm.group_count", "n_groups"},
                                            {"ssm.time_step_rank", "num_heads"},
                                            {"ssm.state_size", "state_size"},
                                            {"ssm.conv_kernel", "conv_kernel"}};
inline constexpr GgufName kJambaNames[] = {
    {"ssm.time_step_rank", "mamba_dt_rank"}, {"ssm.state_size", "mamba_d_state"}, {"ssm.conv_kernel", "mamba_d_conv"}};
inline constexpr GgufName kMamba2PartNames[] = {{"ssm.time_step_rank", "mamba_n_heads"},
                                                {"ssm.group_count", "mamba_n_groups"},
                                                {"ssm.state_size", "mamba_d_state"},
                                                {"ssm.conv_kernel", "mamba_d_conv"}};
inline constexpr GgufName kHeadNames[] = {{"attention.head_count", "num_attention_heads"},
                                          {"attention.head_count_kv", "num_key_value_heads"}};
inline constexpr GgufName kNemotronNames[] = {{"ssm.time_step_rank", "mamba_num_heads"},
                                              {"ssm.group_count", "n_groups"},
                                              {"ssm.state_size", "ssm_state_size"},
                                              {"ssm.conv_kernel", "conv_kernel"}};
inline constexpr GgufName kDeltaNames[] = {{"ssm.group_count", "linear_num_key_heads"},
                                           {"ssm.time_step_rank", "linear_num_value_heads"},
                                           {"ssm.state_size", "linear_key_head_dim"},
                                           {"ssm.conv_kernel", "linear_conv_kernel_dim"}};
inline constexpr GgufName kKimiNames[] = {{"kda.head_dim", "linear_head_dim"},
                                          {"ssm.conv_kernel", "linear_conv_kernel_dim"},
                                          {"attention.kv_lora_rank", "kv_lora_rank"},
                                          {"rope.dimension_count", "qk_rope_head_dim"},
                                          {"attention.value_length_mla", "v_head_dim"},
                                          {"feed_forward_length", "intermediate_size"},
                                          {"expert_count", "num_experts"},
                                          {"expert_feed_forward_length", "moe_intermediate_size"},
                                          {"expert_shared_count", "num_shared_experts"}};
inline constexpr GgufName kRwkv6Names[] = {{"time_mix_extra_dim", "proj_low_rank_dim"},
                                           {"time_decay_extra_dim", "gate_low_rank_dim"},
                                           {"feed_forward_length", "intermediate_size"}};
inline constexpr GgufName kRwkv7Names[] = {{"wkv.head_size", "head_dim"},
                                           {"attention.decay_lora_rank", "decay_low_rank_dim"},
                                           {"attention.iclr_lora_rank", "a_low_rank_dim"},
                                           {"attention.value_residual_mix_lora_rank", "v_low_rank_dim"},
                                           {"attention.gate_lora_rank", "gate_low_rank_dim"},
                                           {"feed_forward_length", "intermediate_size"}};
inline constexpr double kRwkvHeadNormEps = 64e-5;  // of the norms over heads, which llama.cpp fixes
inline constexpr GgufName kExpertNames[] = {{"expert_count", "num_experts"},
                                            {"expert_used_count", "num_experts_per_tok"},
                                            {"expert_feed_forward_length", "moe_intermediate_size"}};

}  // namespace cortado
