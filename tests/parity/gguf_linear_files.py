"""GGUF files of transformers' linear-time models and of models with experts, written as llama.cpp's converter writes them."""

import gguf
import numpy as np
import torch
from gguf_expert_files import OWN as EXPERT_FILES, expert_tensors, kimi_keys, minimax_keys, nemotron_expert_keys

F32 = gguf.GGMLQuantizationType.F32
NEMOTRON = ("nemotron_h", "nemotron_h_moe")
MAMBA2 = ("mamba2", "granitehybrid", "falcon-h1", *NEMOTRON)
QWEN = ("qwen3next", "qwen35", "qwen35moe")
# The models of linear_models.STATES that have files, with the settings that a file cannot say otherwise.
ARCHITECTURES = {
    "mamba": ("mamba", {}),
    "mamba_wide": ("mamba", {}),
    "mamba2": ("mamba2", {}),
    "mamba2_wide": ("mamba2", {}),
    "falcon_mamba": ("mamba", {}),
    "jamba": ("jamba", {}),
    "jamba_experts": ("jamba", {}),
    "jamba_mixed": ("jamba", {}),
    "granitemoehybrid": ("granitehybrid", {}),
    "granitemoehybrid_experts": ("granitehybrid", {}),
    "bamba": ("granitehybrid", {}),
    "qwen3_moe": ("qwen3moe", {}),
    "qwen3_moe_wide": ("qwen3moe", {"norm_topk_prob": True}),
    "qwen3_next_experts": ("qwen3next", {}),
    "qwen3_5_text": ("qwen35", {}),
    "qwen3_5_moe_text": ("qwen35moe", {}),
    "lfm2": ("lfm2", {}),
    "lfm2_wide": ("lfm2", {"conv_bias": False}),
    "falcon_h1": ("falcon-h1", {}),
    "falcon_h1_wide": ("falcon-h1", {"mamba_norm_before_gate": False, "mamba_proj_bias": False, "attention_bias": False, "mlp_bias": False,
                                     "tie_word_embeddings": False}),
    "nemotron_h": ("nemotron_h", {"time_step_min": 1e-9}),
    "nemotron_h_wide": ("nemotron_h", {"use_bias": False, "mlp_bias": False, "time_step_min": 1e-9}),
    "nemotron_h_experts": ("nemotron_h_moe", {"layers_block_type": ["mamba", "moe", "attention", "mamba", "moe"], "time_step_min": 1e-9}),
    "nemotron_h_latent": ("nemotron_h_moe", {"time_step_min": 1e-9}),
    "kimi_linear": ("kimi-linear", {"linear_num_heads": 4}),
    "kimi_linear_wide": ("kimi-linear", {"rms_norm_eps": 1e-6, "linear_num_heads": 4, "q_lora_rank": None, "attention_bias": False, "norm_topk_prob": True,
                                         "mlp_layer_types": ["dense", "dense", "sparse", "sparse", "sparse"]}),
    "minimax": ("minimax-01", {"mlp_alpha_factor": 3.5, "full_attn_alpha_factor": 3.5, "linear_attn_alpha_factor": 3.5,
                               "layer_types": ["linear_attention", "full_attention", "linear_attention"]}),
    "olmo2": ("olmo2", {}),
    "olmo3": ("olmo2", {}),
    "olmo3_stretched": ("olmo2", {}),
    "gpt_oss": ("gpt-oss", {}),
}  # fmt: skip


def mamba_keys(config, inner):
    normed = config.model_type == "falcon_mamba"
    return {
        "ssm.inner_size": inner, "ssm.state_size": config.state_size, "ssm.conv_kernel": config.conv_kernel,
        "ssm.time_step_rank": config.num_heads if config.model_type == "mamba2" else config.time_step_rank,
        "attention.layer_norm_rms_epsilon": config.layer_norm_epsilon,
        **({"ssm.group_count": config.n_groups} if config.model_type == "mamba2" else {"ssm.dt_b_c_rms": normed}),
    }  # fmt: skip


def hybrid_keys(config, inner):
    attends = [kind in ("attention", "full_attention") for kind in config.layers_block_type]
    keys = {
        "context_length": config.max_position_embeddings, "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": [config.num_key_value_heads if attend else 0 for attend in attends],
        "ssm.inner_size": inner, "ssm.state_size": config.mamba_d_state, "ssm.conv_kernel": config.mamba_d_conv,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
    }  # fmt: skip
    if config.model_type == "jamba":
        return {**keys, "ssm.time_step_rank": config.mamba_dt_rank, "expert_count": config.num_experts, "expert_used_count": config.num_experts_per_tok}
    rope = config.rope_parameters
    granite = config.model_type == "granitemoehybrid"
    keys |= {"ssm.time_step_rank": config.mamba_n_heads, "ssm.group_count": config.mamba_n_groups, "rope.freq_base": rope["rope_theta"],
             "rope.dimension_count": int(config.hidden_size // config.num_attention_heads * rope.get("partial_rotary_factor", 1.0)),
             "rope.scaling.finetuned": not granite or config.position_embedding_type == "rope"}  # fmt: skip
    if granite:
        keys |= {"attention.scale": config.attention_multiplier, "embedding_scale": config.embedding_multiplier,
                 "residual_scale": config.residual_multiplier, "logit_scale": config.logits_scaling, "expert_count": config.num_local_experts,
                 "expert_used_count": config.num_experts_per_tok, "expert_shared_feed_forward_length": config.shared_intermediate_size}  # fmt: skip
    return keys


def rope_keys(config):
    rope = config.rope_parameters
    scaled = {"rope.scaling.type": "linear", "rope.scaling.factor": rope["factor"]} if rope["rope_type"] == "linear" else {}
    return {"rope.freq_base": rope["rope_theta"], **scaled}


def lfm2_keys(config):
    adjusted = config.block_auto_adjust_ff_dim
    hidden = int(config.block_ffn_dim_multiplier * int(2 * config.intermediate_size / 3)) if adjusted else config.intermediate_size
    step = config.block_multiple_of
    return {
        "context_length": config.max_position_embeddings, "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": [config.num_key_value_heads if kind == "full_attention" else 0 for kind in config.layer_types],
        "shortconv.l_cache": config.conv_L_cache, "attention.layer_norm_rms_epsilon": config.norm_eps,
        "feed_forward_length": step * ((hidden + step - 1) // step) if adjusted else hidden, **rope_keys(config),
    }  # fmt: skip


def falcon_h1_keys(config):
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return {
        "context_length": config.max_position_embeddings, "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads, "attention.key_length": head, "attention.value_length": head,
        "feed_forward_length": config.intermediate_size,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps, "ssm.conv_kernel": config.mamba_d_conv,
        "ssm.state_size": config.mamba_d_state, "ssm.group_count": config.mamba_n_groups, "ssm.inner_size": config.mamba_d_ssm,
        "ssm.time_step_rank": config.mamba_n_heads, **rope_keys(config),
    }  # fmt: skip


def nemotron_h_keys(config):
    kinds = config.layers_block_type
    return {
        "block_count": len(kinds), "context_length": config.max_position_embeddings, "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": [config.num_key_value_heads if "attention" in kind.replace("linear_attention", "") else 0 for kind in kinds],
        "attention.key_length": config.head_dim, "attention.value_length": config.head_dim,
        "feed_forward_length": [config.intermediate_size if kind == "mlp" else 0 for kind in kinds],
        "attention.layer_norm_epsilon": config.layer_norm_epsilon, "attention.layer_norm_rms_epsilon": config.layer_norm_epsilon,
        "ssm.conv_kernel": config.conv_kernel, "ssm.state_size": config.ssm_state_size, "ssm.group_count": config.n_groups,
        "ssm.inner_size": config.mamba_num_heads * config.mamba_head_dim, "ssm.time_step_rank": config.mamba_num_heads,
        **(nemotron_expert_keys(config) if "moe" in kinds else {}),
    }  # fmt: skip


def olmo2_keys(config):
    keys = {
        "context_length": config.max_position_embeddings, "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads, "feed_forward_length": config.intermediate_size,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
    }  # fmt: skip
    if config.model_type == "olmo2":
        return {**keys, **rope_keys(config)}
    rope = config.rope_parameters["full_attention"]
    if rope["rope_type"] == "yarn":
        keys |= {"rope.scaling.type": "yarn", "rope.scaling.factor": rope["factor"],
                 "rope.scaling.original_context_length": rope["original_max_position_embeddings"]}  # fmt: skip
    return {**keys, "rope.freq_base": rope["rope_theta"], "attention.sliding_window": config.sliding_window,
            "attention.sliding_window_pattern": [kind == "sliding_attention" for kind in config.layer_types]}  # fmt: skip


def gpt_oss_keys(config):
    rope = config.rope_parameters
    return {
        "context_length": config.max_position_embeddings, "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads, "attention.key_length": config.head_dim, "attention.value_length": config.head_dim,
        "feed_forward_length": config.intermediate_size, "expert_feed_forward_length": config.intermediate_size,
        "expert_count": config.num_local_experts, "expert_used_count": config.num_experts_per_tok,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps, "attention.sliding_window": config.sliding_window,
        "rope.freq_base": rope["rope_theta"], "rope.scaling.type": "yarn", "rope.scaling.factor": rope["factor"],
        "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
    }  # fmt: skip


OTHERS = {"lfm2": lfm2_keys, "falcon_h1": falcon_h1_keys, "nemotron_h": nemotron_h_keys, "olmo2": olmo2_keys, "olmo3": olmo2_keys,
          "kimi_linear": kimi_keys, "minimax": minimax_keys, "gpt_oss": gpt_oss_keys}  # fmt: skip


def qwen_keys(config):
    rope = config.rope_parameters
    keys = {
        "context_length": config.max_position_embeddings, "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads, "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": rope["rope_theta"],
    }  # fmt: skip
    if hasattr(config, "intermediate_size"):
        keys["feed_forward_length"] = config.intermediate_size
    if getattr(config, "head_dim", None):
        keys |= {"attention.key_length": config.head_dim, "attention.value_length": config.head_dim}
    if rope["rope_type"] == "linear":
        keys |= {"rope.scaling.type": "linear", "rope.scaling.factor": rope["factor"]}
    if getattr(config, "num_experts", 0):
        keys |= {"expert_count": config.num_experts, "expert_used_count": config.num_experts_per_tok,
                 "expert_feed_forward_length": config.moe_intermediate_size}  # fmt: skip
    if config.model_type == "qwen3_moe":
        return keys
    if getattr(config, "num_experts", 0):
        keys["expert_shared_feed_forward_length"] = config.shared_expert_intermediate_size
    turned = int(config.head_dim * rope.get("partial_rotary_factor", 0.25))
    if config.model_type != "qwen3_next":
        third = turned // 6  # pairs that turn with a picture's height and with its width
        keys["rope.dimension_sections"] = [turned // 2 - 2 * third, third, third, 0]
    return keys | {
        "rope.dimension_count": turned, "full_attention_interval": 4,
        "attention.recurrent_layers": [kind != "full_attention" for kind in config.layer_types],
        "ssm.conv_kernel": config.linear_conv_kernel_dim, "ssm.state_size": config.linear_key_head_dim,
        "ssm.group_count": config.linear_num_key_heads, "ssm.time_step_rank": config.linear_num_value_heads,
        "ssm.inner_size": config.linear_num_value_heads * config.linear_value_head_dim,
    }  # fmt: skip


def keys_of(config):
    """The metadata, without the architecture's name before each key."""
    shared = {"block_count": config.num_hidden_layers, "embedding_length": config.hidden_size}
    if config.model_type in ("mamba", "mamba2", "falcon_mamba"):
        inner = config.intermediate_size if config.model_type != "mamba2" else config.expand * config.hidden_size
        return {**shared, "context_length": 1 << 20, "attention.head_count": 0, "feed_forward_length": 0, **mamba_keys(config, inner)}
    if config.model_type.startswith("qwen"):
        return {**shared, **qwen_keys(config)}
    if config.model_type in OTHERS:
        return {**shared, **OTHERS[config.model_type](config)}
    return {**shared, **hybrid_keys(config, config.mamba_expand * config.hidden_size)}


def tiled(values, axis, config, size):
    """Puts value heads with equal numbers within their key heads side by side."""
    keys, heads = config.linear_num_key_heads, config.linear_num_value_heads
    shape = values.shape
    split = (*shape[:axis], keys, heads // keys, size, *shape[axis + 1 :])
    return values.reshape(split).swapaxes(axis, axis + 1).reshape(shape)


def in_tiles(inside, values, config):
    """A tensor of Qwen3.5's Gated DeltaNet in the order of its files."""
    value, keys = config.linear_value_head_dim, 2 * config.linear_num_key_heads * config.linear_key_head_dim
    if inside in ("in_proj_qkv.weight", "conv1d.weight"):
        return np.concatenate([values[:keys], tiled(values[keys:], 0, config, value)])
    if inside == "in_proj_z.weight":
        return tiled(values, 0, config, value)
    if inside == "out_proj.weight":
        return tiled(values, 1, config, value)
    return tiled(values, 0, config, 1) if inside in ("in_proj_a.weight", "in_proj_b.weight", "A_log", "dt_bias") else values


def by_map(values, config):
    """Qwen3-Next's joint map, whose rows go by key head, as the map of q, k and v and that of the output gate."""
    key, group = config.linear_key_head_dim, config.linear_num_value_heads // config.linear_num_key_heads * config.linear_value_head_dim
    rows = values.reshape(config.linear_num_key_heads, -1, values.shape[1])
    q, k, v, z = (part.reshape(-1, values.shape[1]) for part in np.split(rows, np.cumsum([key, key, group]), axis=1))
    return np.concatenate([q, k, v]), z


def halves_to_pairs(values, heads):
    return values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def falcon_factor(name, values, config):
    """Falcon-H1's converter multiplies its factors into the maps."""
    if ".mamba.in_proj." in name:
        shared = config.mamba_n_groups * config.mamba_d_state
        parts = np.split(values, np.cumsum([config.mamba_d_ssm, config.mamba_d_ssm, shared, shared]))
        return config.ssm_in_multiplier * np.concatenate([part * factor for part, factor in zip(parts, config.ssm_multipliers)])
    factors = {
        "down_proj": config.mlp_multipliers[1], "gate_proj": config.mlp_multipliers[0], "o_proj": config.attention_out_multiplier,
        "k_proj": config.key_multiplier * config.attention_in_multiplier, "q_proj": config.attention_in_multiplier,
        "v_proj": config.attention_in_multiplier, "out_proj": config.ssm_out_multiplier, "lm_head": config.lm_head_multiplier,
        "embed_tokens": config.embedding_multiplier,
    }  # fmt: skip
    return values * factors.get(name.split(".")[-2], 1.0)


def changed(name, values, architecture, config, early):
    """Returns [(name, values)] as the converter changes a tensor; most names are still the folder's. `early`: the converter's first version."""
    inside = name.split("linear_attn.")[-1]
    block = name.partition("layers.")[2].partition(".")[0]
    if architecture.startswith("qwen35") and inside != name:
        values = in_tiles(inside, values, config)
    if architecture == "falcon-h1":
        values = falcon_factor(name, values, config)
    if architecture in NEMOTRON and ".mixer.experts." in name:
        return [(f"blk.{block}.ffn_{name.split('.')[-1].removesuffix('_proj')}_exps.weight", values)]
    if architecture in NEMOTRON and name.endswith("e_score_correction_bias"):
        return [(f"blk.{block}.exp_probs_b.bias", values)]
    if architecture in NEMOTRON:
        name = name.replace("model.layers.", "backbone.layers.")
    if name.endswith("A_log"):
        values = -np.exp(values)
    if "conv1d.weight" in name or "conv.conv.weight" in name:
        values = values.squeeze(1)
    if architecture in MAMBA2 and name.endswith((".A_log", ".D")):
        values = values[:, None]
    if architecture in MAMBA2 and name.endswith((".mixer.norm.weight", ".mamba.norm.weight")):
        values = values.reshape(getattr(config, "n_groups", None) or config.mamba_n_groups, -1)
    if architecture == "granitehybrid" and ".q_proj." in name:
        values = halves_to_pairs(values, config.num_attention_heads)
    if architecture == "granitehybrid" and ".k_proj." in name:
        values = halves_to_pairs(values, config.num_key_value_heads)
    if architecture in QWEN and name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
        values = values + 1
    if inside == "in_proj_qkvz.weight" and early:
        return [(f"blk.{block}.ssm_in.weight", values)]
    if inside == "in_proj_qkvz.weight":
        return list(zip((f"blk.{block}.attn_qkv.weight", f"blk.{block}.attn_gate.weight"), by_map(values, config)))
    if name.endswith(".sinks"):
        name = f"{name}.weight"
    if architecture == "gpt-oss" and ".experts." in name:
        suffix = "bias" if name.endswith("_bias") else "weight"
        rows = values if suffix == "bias" else values.swapaxes(1, 2)
        if ".down_proj" in name:
            return [(f"blk.{block}.ffn_down_exps.{suffix}", rows)]
        return [(f"blk.{block}.ffn_{part}_exps.{suffix}", rows[:, begin::2]) for begin, part in enumerate(("gate", "up"))]
    if name.endswith(("experts.gate_up_proj", "shared_mlp.input_linear.weight")):
        whose = "exps" if "experts" in name else "shexp" if config.num_local_experts else ""
        return [(f"blk.{block}.ffn_{part}{whose and '_'}{whose}.weight", half) for part, half in zip(("gate", "up"), np.split(values, 2, axis=-2))]
    if name.endswith("experts.down_proj"):
        return [(f"blk.{block}.ffn_down_exps.weight", values)]
    if name.endswith("shared_mlp.output_linear.weight"):
        return [(f"blk.{block}.ffn_down{'_shexp' if config.num_local_experts else ''}.weight", values)]
    return [(name.replace(".dt_bias", ".dt_proj.bias"), values)]


def tensors_of(model, architecture, early=False):
    config = model.config
    if architecture in EXPERT_FILES:
        yield from expert_tensors(model, architecture)
        return
    known = {label: number for number, label in gguf.MODEL_ARCH_NAMES.items()}[architecture]
    names = gguf.get_tensor_name_map(known, config.num_hidden_layers)
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        for renamed, values in changed(name, weight.float().numpy(), architecture, config, early):
            if not renamed.startswith("blk."):
                renamed = names.get_name(renamed.replace(".router.weight", ".router.layer.weight") if architecture == "granitehybrid" else renamed,
                                         try_suffixes=(".weight", ".bias"))  # fmt: skip
            yield renamed, np.ascontiguousarray(values)


def put(writer, key, value):
    if isinstance(value, list):
        writer.add_array(key, value)
    else:
        {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}[type(value)](key, value)


def write_linear_gguf(path, model, architecture, keys=None, stored=lambda name, values: (values, F32), more=(), early=False, tokenizer=None, **options):
    """`stored` gives each tensor's data and type, `more` are tensors besides, `keys` metadata that differ, `tokenizer` is the kind of the
    tokenizer: "no_vocab" is llama.cpp's word for none."""
    writer = gguf.GGUFWriter(path, architecture, **options)
    if tokenizer:
        writer.add_tokenizer_model(tokenizer)
    for key, value in {**keys_of(model.config), **(keys or {})}.items():
        if value is not None:
            put(writer, f"{architecture}.{key}", value)
    with torch.no_grad():
        for name, values in [*tensors_of(model, architecture, early), *more]:
            data, kind = stored(name, values)
            writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
