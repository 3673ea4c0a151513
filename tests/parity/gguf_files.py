"""GGUF files of transformers' models, written as llama.cpp's converter writes them."""

import gguf
import numpy as np
import torch
import transformers

INSIDE = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
POST_NORMS = {  # of Gemma-2 and Gemma-3
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
PAIRS = ("llama", "smollm3", "granite")  # the converter orders a head's rows of q and k as pairs
OUTSIDE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def gguf_name(name, post_norms):
    stem, suffix = name.rsplit(".", 1)
    if stem in OUTSIDE:
        return f"{OUTSIDE[stem]}.{suffix}"
    _, _, layer, inside = stem.split(".", 3)
    return f"blk.{layer}.{({**INSIDE, **POST_NORMS} if post_norms else INSIDE)[inside]}.{suffix}"


def permuted(weight, heads):
    """Puts a Llama's q and k rows into the converter's order."""
    return weight.reshape(heads, 2, weight.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(weight.shape)


def llama3_factors(config):
    """Returns the divisor of each frequency, after the converter's generate_extra_tensors."""
    rope, head_dim = config.rope_parameters, config.head_dim
    base = rope["rope_theta"] ** (torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    low, high, context = rope["low_freq_factor"], rope["high_freq_factor"], rope["original_max_position_embeddings"]
    factors = []
    for wavelength in (2 * torch.pi * base).tolist():
        if wavelength < context / high:
            factors.append(1.0)
        elif wavelength > context / low:
            factors.append(rope["factor"])
        else:
            smooth = (context / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(factors, dtype=np.float32)


def write_metadata(writer, config, architecture):
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    writer.add_rope_freq_base(rope["rope_theta"])
    if getattr(config, "head_dim", None):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_factors(config))
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
        writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
    if rope["rope_type"] == "longrope":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_attn_factors(rope["attention_factor"])
        for length in ("short", "long"):
            writer.add_tensor(f"rope_factors_{length}.weight", np.array(rope[f"{length}_factor"], dtype=np.float32))
    if architecture == "phi3":
        head_dim = config.hidden_size // config.num_attention_heads
        writer.add_rope_dimension_count(int(head_dim * rope["partial_rotary_factor"]))
        writer.add_sliding_window(config.sliding_window or 0)
    if architecture == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if architecture in ("gemma2", "gemma3"):
        writer.add_sliding_window(config.sliding_window)
    if architecture == "granite":
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)


def write_vocabulary(path, vocabulary):
    """Writes a file with only a tokenizer, {"model": "gpt2", "tokens": [...], "begin": 1, ...}; returns its path."""
    writer = gguf.GGUFWriter(path, "llama")
    put = {
        "model": writer.add_tokenizer_model, "pre": writer.add_tokenizer_pre, "tokens": writer.add_token_list,
        "merges": writer.add_token_merges, "scores": writer.add_token_scores, "types": writer.add_token_types,
        "begin": writer.add_bos_token_id, "end": writer.add_eos_token_id, "unknown": writer.add_unk_token_id,
        "add_begin": writer.add_add_bos_token, "add_space": writer.add_add_space_prefix, "chat_template": writer.add_chat_template,
        "end_turn": writer.add_eot_token_id,
    }  # fmt: skip
    for key, value in vocabulary.items():
        put[key](value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def write_gguf(path, model, architecture, kind=gguf.GGMLQuantizationType.F32):
    """Writes the model, its matrices as `kind`, and gives it the weights that the file then holds."""
    writer = gguf.GGUFWriter(path, architecture)
    config = model.config
    write_metadata(writer, config, architecture)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    with torch.no_grad():
        for name, weight in model.state_dict().items():
            if name == "lm_head.weight" and config.tie_word_embeddings:
                continue
            values = weight.numpy()
            order = heads.get(name.split(".")[-2]) if architecture in PAIRS else None
            if order:
                values = permuted(values, order)
            if architecture.startswith("gemma") and name.endswith("norm.weight"):
                values = values + 1
            stored = kind if values.ndim == 2 else gguf.GGMLQuantizationType.F32
            data = gguf.quants.quantize(values, stored)
            writer.add_tensor(gguf_name(name, architecture in ("gemma2", "gemma3")), data, raw_dtype=stored)
            if values.ndim == 2:
                read = torch.from_numpy(gguf.quants.dequantize(data, stored).astype(np.float32))
                if order:
                    read = read.reshape(order, -1, 2, read.shape[1]).transpose(1, 2).reshape(weight.shape)
                weight.copy_(read)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def read_llama(path):
    """Returns a Llama's GGUF file as transformers' model in float32, decoded by the gguf package."""
    reader = gguf.GGUFReader(path)
    tensors = {tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type) for tensor in reader.tensors}

    def field(key, otherwise=None):
        found = reader.fields.get(f"llama.{key}")
        return found.parts[found.data[0]][0].item() if found else otherwise

    heads = {"q_proj": field("attention.head_count"), "k_proj": field("attention.head_count_kv")}
    config = transformers.LlamaConfig(
        vocab_size=tensors["token_embd.weight"].shape[0],
        hidden_size=field("embedding_length"),
        intermediate_size=field("feed_forward_length"),
        num_hidden_layers=field("block_count"),
        num_attention_heads=heads["q_proj"],
        num_key_value_heads=heads["k_proj"],
        max_position_embeddings=field("context_length"),
        rms_norm_eps=field("attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": field("rope.freq_base", 10000.0)},
        tie_word_embeddings="output.weight" not in tensors,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            values = torch.tensor(tensors[gguf_name(name, False)])
            count = heads.get(name.split(".")[-2])
            if count:
                values = values.reshape(count, -1, 2, values.shape[1]).transpose(1, 2).reshape(values.shape)
            weight.copy_(values)
    return model
