"""The metadata and tensors of GGUF files of Kimi Linear, MiniMax-01 and Nemotron-3's experts, for gguf_linear_files.py."""

import numpy as np


def attends(config):
    return [kind == "full_attention" for kind in config.layer_types]


def kimi_keys(config):
    return {
        "context_length": config.model_max_length, "feed_forward_length": config.intermediate_size, "vocab_size": config.vocab_size,
        "attention.head_count": config.num_attention_heads, "attention.head_count_kv": [int(full) for full in attends(config)],
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps, "attention.kv_lora_rank": config.kv_lora_rank,
        "attention.key_length": config.kv_lora_rank + config.qk_rope_head_dim, "attention.value_length": config.kv_lora_rank,
        "attention.key_length_mla": config.qk_nope_head_dim + config.qk_rope_head_dim, "attention.value_length_mla": config.v_head_dim,
        "rope.dimension_count": config.qk_rope_head_dim, "ssm.conv_kernel": config.linear_conv_kernel_dim, "kda.head_dim": config.linear_head_dim,
        "expert_count": config.num_experts, "expert_used_count": config.num_experts_per_token, "expert_gating_func": 2,
        "expert_feed_forward_length": config.moe_intermediate_size, "expert_shared_count": config.num_shared_experts,
        "expert_weights_scale": config.routed_scaling_factor, "leading_dense_block_count": config.mlp_layer_types.count("dense"),
        "expert_group_count": config.num_expert_group, "expert_group_used_count": config.topk_group,
    }  # fmt: skip


def minimax_keys(config):
    head = config.head_dim or config.hidden_size // config.num_attention_heads
    return {
        "context_length": config.max_position_embeddings, "feed_forward_length": config.intermediate_size, "vocab_size": config.vocab_size,
        "attention.head_count": config.num_attention_heads, "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": head, "attention.value_length": head, "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "attention.recurrent_layers": [not full for full in attends(config)], "rope.dimension_count": head,
        "rope.freq_base": config.rope_parameters["rope_theta"], "residual_scale": float(config.mlp_alpha_factor),
        "expert_count": config.num_local_experts, "expert_used_count": config.num_experts_per_tok,
    }  # fmt: skip


def nemotron_expert_keys(config):
    latent = {"moe_latent_size": config.moe_latent_size} if config.moe_latent_size else {}
    return {
        "expert_count": config.n_routed_experts, "expert_used_count": config.num_experts_per_tok, "expert_shared_count": 1,
        "feed_forward_length": [config.moe_intermediate_size if kind == "moe" else 0 for kind in config.layers_block_type],
        "expert_feed_forward_length": config.moe_intermediate_size, "expert_group_count": config.n_group,
        "expert_group_used_count": config.topk_group, "expert_shared_feed_forward_length": config.moe_shared_expert_intermediate_size,
        "expert_weights_norm": config.norm_topk_prob, "expert_weights_scale": config.routed_scaling_factor, **latent,
    }  # fmt: skip


SHARED = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "mlp.gate": "ffn_gate_inp", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
    "mlp.shared_experts.up_proj": "ffn_up_shexp", "mlp.shared_experts.down_proj": "ffn_down_shexp",
}  # fmt: skip
OWN = {
    "kimi-linear": {
        "self_attn.forget_gate.f_a_proj": "ssm_f_a", "self_attn.forget_gate.f_b_proj": "ssm_f_b", "self_attn.b_proj": "ssm_beta",
        "self_attn.g_a_proj": "ssm_g_a", "self_attn.g_b_proj": "ssm_g_b", "self_attn.o_norm": "ssm_norm",
        "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa", "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    },
    "minimax-01": {
        "self_attn.qkv_proj": "attn_qkv", "self_attn.output_gate": "attn_gate", "self_attn.out_proj": "attn_output",
        "self_attn.norm": "attn_norm_2",
    },
}  # fmt: skip
OUTSIDE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def latent_parts(values, config):
    """Multi-head latent attention's map of keys and values: the keys' part is transposed."""
    joint = values.reshape(config.num_attention_heads, -1, values.shape[1])
    keys, values = np.split(joint, [config.qk_nope_head_dim], axis=1)
    return [("attn_k_b.weight", keys.swapaxes(1, 2)), ("attn_v_b.weight", values)]


def in_block(part, values, architecture, config):
    """[(name, values)] of a block's tensor, as the converter has them."""
    if part == "mlp.experts.gate_up_proj":
        return [(f"ffn_{it}_exps.weight", half) for it, half in zip(("gate", "up"), np.split(values, 2, axis=-2))]
    if part == "mlp.experts.down_proj":
        return [("ffn_down_exps.weight", values)]
    if part.endswith("e_score_correction_bias"):
        return [("exp_probs_b.bias", values)]
    if part == "self_attn.conv1d.weight":
        return [(f"ssm_conv1d_{it}.weight", conv.reshape(1, -1, 1, conv.shape[-1])) for it, conv in zip("qkv", np.split(values, 3))]
    if part.endswith("A_log"):
        return [("ssm_a", -np.exp(values))]
    if part.endswith("dt_bias"):
        return [("ssm_dt.bias", values)]
    if part == "self_attn.kv_b_proj.weight":
        return latent_parts(values, config)
    stem, _, suffix = part.rpartition(".")
    return [(f"{({**SHARED, **OWN[architecture]})[stem]}.{suffix}", values)]


def expert_tensors(model, architecture):
    for name, weight in model.state_dict().items():
        values = weight.float().numpy()
        stem, _, suffix = name.rpartition(".")
        if stem in OUTSIDE:
            yield f"{OUTSIDE[stem]}.{suffix}", values
        elif not name.endswith(("slope_rate", "_decay")):
            _, _, block, part = name.split(".", 3)
            for inside, changed in in_block(part, values, architecture, model.config):
                yield f"blk.{block}.{inside}", np.ascontiguousarray(changed)
