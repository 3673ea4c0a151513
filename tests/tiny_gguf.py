"""Writes a GGUF file of a tiny Llama over bytes, as llama.cpp's converter does."""

import gguf
import numpy as np

DIM, HEADS, HIDDEN, LAYERS = 32, 2, 64, 2


def letters():
    """Returns GPT-2's letter for each byte."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    names = {byte: chr(byte) for byte in plain} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    return [names[byte] for byte in range(256)]


def write_tiny_gguf(path, seed=0, chat_template=None, sampling=None):
    """Writes the file; returns its path. `sampling`: {"temp": 0.3, ...} of general.sampling."""
    writer = gguf.GGUFWriter(path, "llama")
    for put, value in (
        (writer.add_block_count, LAYERS), (writer.add_context_length, 128), (writer.add_embedding_length, DIM),
        (writer.add_feed_forward_length, HIDDEN), (writer.add_head_count, HEADS), (writer.add_head_count_kv, HEADS),
        (writer.add_layer_norm_rms_eps, 1e-5), (writer.add_rope_freq_base, 1e4),
    ):  # fmt: skip
        put(value)
    marks = ["<|im_start|>", "<|im_end|>"] if chat_template else ["<s>", "</s>"]
    tokens = [*letters(), "ab", *marks]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_merges(["a b"])
    writer.add_token_types([1] * 257 + [3, 3])
    writer.add_eos_token_id(258)
    if chat_template:
        writer.add_chat_template(chat_template)
    for key, value in (sampling or {}).items():
        add = writer.add_int32 if isinstance(value, int) else writer.add_float32
        add(f"general.sampling.{key}", value)
    draw = np.random.default_rng(seed)
    shapes = {"attn_q": (DIM, DIM), "attn_k": (DIM, DIM), "attn_v": (DIM, DIM), "attn_output": (DIM, DIM),
              "ffn_gate": (HIDDEN, DIM), "ffn_up": (HIDDEN, DIM), "ffn_down": (DIM, HIDDEN)}  # fmt: skip
    matrices = {"token_embd": (len(tokens), DIM)}
    matrices |= {f"blk.{layer}.{name}": shape for layer in range(LAYERS) for name, shape in shapes.items()}
    for name, shape in matrices.items():
        writer.add_tensor(f"{name}.weight", (draw.standard_normal(shape) * 0.3).astype(np.float32))
    norms = ["output_norm", *(f"blk.{layer}.{name}" for layer in range(LAYERS) for name in ("attn_norm", "ffn_norm"))]
    for name in norms:
        writer.add_tensor(f"{name}.weight", np.ones(DIM, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
