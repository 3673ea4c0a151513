"""GGUF files of flash-linear-attention's RWKV-6 and RWKV-7, written as llama.cpp's converter writes them."""

import gguf
import numpy as np
import torch
from gguf_linear_files import F32, put
from linear_models import SIZES, random_weights

# llama.cpp's epsilon of the norms over heads is 64e-5, where fla's is `norm_eps`, in RWKV-7 times the size of a head.
MODELS = {
    "rwkv6": ("RWKV6", dict(num_heads=4, expand_k=1.0, norm_eps=64e-5, intermediate_size=40)),
    "rwkv6_wide": ("RWKV6", dict(num_heads=2, expand_k=1.0, norm_eps=64e-5, proj_low_rank_dim=5, gate_low_rank_dim=3, intermediate_size=64)),
    "rwkv7": ("RWKV7", dict(head_dim=8, norm_eps=8e-5, intermediate_size=40, decay_low_rank_dim=5, a_low_rank_dim=3, v_low_rank_dim=7,
                            gate_low_rank_dim=6)),
    "rwkv7_wide": ("RWKV7", dict(head_dim=64, norm_eps=1e-5, hidden_size=128, intermediate_size=96, decay_low_rank_dim=8, a_low_rank_dim=8,
                                 v_low_rank_dim=8, gate_low_rank_dim=16)),
}  # fmt: skip
# llama.cpp's CPU kernel of RWKV-7 computes 64 channels of a head at a time. All published models have such heads.
LLAMA_CPP = [name for name in MODELS if name != "rwkv7"]
TRANSPOSED = ("time_mix_w1.weight", "time_mix_decay_w1.weight", "time_mix_decay_w2.weight")


def rwkv_model(name, more=None):
    """The model, with random weights. It cannot compute on a CPU."""
    import fla.models

    kind, options = MODELS[name]
    config = getattr(fla.models, kind + "Config")(**{**SIZES, "fuse_norm": False, "fuse_cross_entropy": False, **options, **(more or {})})
    with torch.no_grad():
        return random_weights(getattr(fla.models, kind + "ForCausalLM")(config))


def keys_of(config):
    keys = {
        "block_count": config.num_hidden_layers, "context_length": 1048576, "embedding_length": config.hidden_size, "attention.head_count": 0,
        "attention.layer_norm_epsilon": config.norm_eps, "feed_forward_length": config.intermediate_size,
    }  # fmt: skip
    if config.model_type == "rwkv6":
        return {**keys, "wkv.head_size": config.hidden_size // config.num_heads, "rescale_every_n_layers": 0,
                "time_mix_extra_dim": config.proj_low_rank_dim, "time_decay_extra_dim": config.gate_low_rank_dim}  # fmt: skip
    return {**keys, "wkv.head_size": config.head_dim, "attention.decay_lora_rank": config.decay_low_rank_dim,
            "attention.iclr_lora_rank": config.a_low_rank_dim, "attention.value_residual_mix_lora_rank": config.v_low_rank_dim,
            "attention.gate_lora_rank": config.gate_low_rank_dim}  # fmt: skip


def as_published(model):
    """RWKV-6's tensors by the names and in the shapes of its published folders, from which the converter makes a file."""
    outside = {"embeddings": "rwkv.embeddings", "norm": "rwkv.ln_out", "lm_head": "head", "layers.0.pre_norm": "rwkv.blocks.0.pre_ln"}
    inside = {
        "attn_norm": "ln1", "ffn_norm": "ln2", "attn.g_norm": "attention.ln_x", "attn.o_proj": "attention.output",
        "attn.r_proj.linear": "attention.receptance", "attn.k_proj.linear": "attention.key", "attn.v_proj.linear": "attention.value",
        "attn.g_proj.linear": "attention.gate", "ffn.key.linear": "feed_forward.key", "ffn.receptance.linear": "feed_forward.receptance",
        "ffn.value": "feed_forward.value",
    }  # fmt: skip
    order = [1, 2, 3, 0, 4]  # w, k, v, r, g of r, w, k, v, g
    for name, weight in model.state_dict().items():
        values = weight.float().numpy()
        stem, _, suffix = name.removeprefix("model.").rpartition(".")
        if stem in outside:
            yield f"{outside[stem]}.{suffix}", values
            continue
        _, block, part = name.removeprefix("model.").split(".", 2)
        place = f"rwkv.blocks.{block}."
        if part.rpartition(".")[0] in inside:
            yield f"{place}{inside[part.rpartition('.')[0]]}.{suffix}", values
        elif part == "attn.x_bias":
            for which, row in zip("wkvrg", values[order]):
                yield f"{place}attention.time_maa_{which}", row[None, None]
        else:
            ours = {
                "attn.x_proj.0.mu": ("attention.time_maa_x", lambda x: x[None, None]),
                "attn.x_proj.0.linear.weight": ("attention.time_maa_w1", lambda x: x.reshape(5, -1, x.shape[1])[order].reshape(x.shape).T),
                "attn.x_proj.2.weight": ("attention.time_maa_w2", lambda x: x.reshape(x.shape[0], 5, -1).transpose(1, 2, 0)[order]),
                "attn.w_proj.linear.lora.0.weight": ("attention.time_decay_w1", lambda x: x.T),
                "attn.w_proj.linear.lora.2.weight": ("attention.time_decay_w2", lambda x: x.T),
                "attn.w_proj.linear.lora.2.bias": ("attention.time_decay", lambda x: x[None, None]),
                "attn.bonus": ("attention.time_faaaa", lambda x: x),
                "ffn.key.mu": ("feed_forward.time_maa_k", lambda x: x[None, None]),
                "ffn.receptance.mu": ("feed_forward.time_maa_r", lambda x: x[None, None]),
            }  # fmt: skip
            renamed, change = ours[part]
            yield place + renamed, change(values)


def converted_6(model, names, rescale, separate):
    mixes = {}
    for name, values in as_published(model):
        renamed = names.get_name(name, try_suffixes=(".weight", ".bias"))
        renamed += "" if renamed.endswith((".weight", ".bias")) else ".weight"
        if renamed.endswith(TRANSPOSED):
            values = values.T
        if renamed.endswith("time_mix_w2.weight"):
            values = values.transpose(0, 2, 1)
        if renamed.endswith("time_mix_decay.weight") or "lerp" in renamed:
            values = values.squeeze()
        block = int(renamed.split(".")[1]) if renamed.startswith("blk.") else 0
        if rescale and renamed.endswith(("time_mix_output.weight", "channel_mix_value.weight")):
            values = values / 2 ** (block // rescale)
        if "time_mix_lerp" in renamed and "lerp_x" not in renamed and not separate:
            mixes.setdefault(block, {})[renamed.split("_")[-1][0]] = values
            if len(mixes[block]) == 5:
                yield f"blk.{block}.time_mix_lerp_fused.weight", np.stack([mixes[block][it] for it in "wkvrg"])[:, None, None]
            continue
        yield renamed, values


def converted_7(model, names):
    mixes = {}
    for name, weight in model.state_dict().items():
        values = weight.float().numpy()
        for old, new in (("blocks", "layers"), ("ffn", "feed_forward"), ("attn", "attention"), ("feed_forward_norm", "ln2"), ("g_norm", "ln_x"),
                         ("_lora.lora.0.weight", "1.weight"), ("_lora.lora.2.weight", "2.weight"), ("_lora.lora.2.bias", "0.weight")):  # fmt: skip
            name = name.replace(old, new)
        block = int(name.split(".")[2]) if ".layers." in name else 0
        if "attention.x_" in name:
            mixes.setdefault(block, {})[name[-1]] = values
            if len(mixes[block]) == 6:
                yield f"blk.{block}.time_mix_lerp_fused.weight", np.stack([mixes[block][it] for it in "rwkvag"])
            continue
        renamed = names.get_name(name, try_suffixes=(".weight", ".bias"))
        renamed += "" if renamed.endswith((".weight", ".bias")) else ".weight"
        values = values.reshape(-1) if "r_k" in renamed else values.squeeze()
        if block == 0 and "time_mix_a" in renamed:  # llama.cpp wants a map of values in every block
            yield renamed.replace("time_mix_a", "time_mix_v"), values
        yield renamed, values


def write_rwkv_gguf(path, model, keys=None, rescale=0, separate=False):
    """`rescale`: the number of blocks after which RWKV-6's stream is halved. `separate`: RWKV-6's mixes are five tensors, as converters wrote
    them until 2025."""
    architecture = model.config.model_type
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_tokenizer_model("no_vocab")
    six = architecture == "rwkv6"
    for key, value in {**keys_of(model.config), **({"rescale_every_n_layers": rescale} if six else {}), **(keys or {})}.items():
        put(writer, f"{architecture}.{key}", value)
    known = {label: number for number, label in gguf.MODEL_ARCH_NAMES.items()}[architecture]
    names = gguf.get_tensor_name_map(known, model.config.num_hidden_layers)
    with torch.no_grad():
        for name, values in converted_6(model, names, rescale, separate) if six else converted_7(model, names):
            writer.add_tensor(name, np.ascontiguousarray(values), raw_dtype=F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
