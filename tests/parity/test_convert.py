"""cortado linearize of each family with softmax layers: what these layers have that Llama's have not must survive."""

import pathlib

import linear_models
import pretrained_models
import pytest
import tokenizers
import torch

pytestmark = pytest.mark.mechanism("macchiato", "lolcats")
LLAMAS = [
    "llama3", "mistral_full", "qwen2", "qwen3", "qwen3_yarn", "gemma", "gemma2", "gemma3_text", "smollm3", "granite", "phi3", "phi3_partly",
    "seed_oss", "olmo2", "olmo3",
]  # fmt: skip
HYBRIDS = ["qwen3_moe", "qwen3_next", "qwen3_5_text", "bamba", "granitemoehybrid", "jamba", "jamba_mixed", "lfm2", "olmo_hybrid", "nemotron_h_experts", "minimax"]
TEXT = pathlib.Path(__file__).resolve().parent.parent.parent / "data/tinyshakespeare.txt"
BYTES = {"vocab_size": 256}


def small_model(name):
    """Returns the family's model for pieces that are bytes, with norms that are not 1."""
    if name in HYBRIDS:
        kind, special = linear_models.STATES[name]
        model = kind(kind.config_class(**{**linear_models.SIZES, **special, **BYTES}))
    else:
        kind, _, special = {**pretrained_models.MODELS, **pretrained_models.OTHERS}[name]
        changes = {"sliding_window": None} if name == "phi3" else {}
        model = kind(kind.config_class(**{**pretrained_models.SIZES, **special, **changes, **BYTES}))
    return linear_models.random_weights(model)


def write_model(name, folder):
    """Writes the model, and a tokenizer whose pieces are bytes."""
    torch.manual_seed(3)
    # transformers writes OLMo Hybrid's three convolutions with equal widths; its tensors in memory are right.
    small_model(name).save_pretrained(folder, save_original_format=name != "olmo_hybrid")
    pieces = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE({piece: i for i, piece in enumerate(pieces)}, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))


@pytest.mark.parametrize("method", ["macchiato", "lolcats"])
@pytest.mark.parametrize("name", LLAMAS + HYBRIDS)
def test_families_convert(name, method, cortado, tmp_path):
    """The converted model writes as its teacher does, because the whole text lies in the window, whose logit is far above the latents'."""
    write_model(name, tmp_path / "model")
    (tmp_path / "text.txt").write_text(TEXT.read_text()[:4000])
    options = ("--data", tmp_path / "text.txt", "--context", 64, "--batch", 1, "--accumulate", 1, "--evaluation-chunks", 1, "--threads", 1)
    cache = ("--cache", 8, "--chunk", 8, "--window-logit", 60) if method == "macchiato" else ()
    done = cortado("linearize", tmp_path / "model", *options, "--method", method, "--window", 16, *cache, "--tokens", 128, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    written = [
        cortado("generate", folder, "--prompt", "ROMEO", "--n-tokens", 8, "--temperature", 0, "--threads", 1)
        for folder in (tmp_path / "model", tmp_path / "run")
    ]
    assert [it.returncode for it in written] == [0, 0], written
    assert written[0].stdout == written[1].stdout
