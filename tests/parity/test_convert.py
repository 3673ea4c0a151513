"""cortado linearize of each family of softmax models: what their layers have that Llama's have not must survive."""

import pathlib

import pytest
import tokenizers
import torch
from pretrained_models import MODELS, SIZES

pytestmark = pytest.mark.mechanism("macchiato", "lolcats")
CONVERTED = ["llama3", "mistral_full", "qwen2", "gemma", "gemma2", "smollm3", "granite", "phi3", "phi3_partly", "seed_oss"]
TEXT = pathlib.Path(__file__).resolve().parent.parent.parent / "data/tinyshakespeare.txt"
NOT_BY_MACCHIATO = ["phi3_partly"]  # rotates whole heads


def write_model(name, folder):
    """Writes the family's model, with a tokenizer whose pieces are bytes."""
    kind, _, special = MODELS[name]
    torch.manual_seed(1)
    changes = {"sliding_window": None} if name == "phi3" else {}
    model = kind(kind.config_class(**{**SIZES, **special, **changes, "vocab_size": 256}))
    model.save_pretrained(folder)
    pieces = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE({piece: i for i, piece in enumerate(pieces)}, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))


@pytest.mark.parametrize("method", ["macchiato", "lolcats"])
@pytest.mark.parametrize("name", CONVERTED)
def test_families_convert(name, method, cortado, tmp_path):
    """The converted model writes. With LoLCATs it writes as its teacher does, because the whole text lies in the first two blocks."""
    if method == "macchiato" and name in NOT_BY_MACCHIATO:
        pytest.skip("macchiato rotates whole heads")
    write_model(name, tmp_path / "model")
    (tmp_path / "text.txt").write_text(TEXT.read_text()[:4000])
    options = ("--data", tmp_path / "text.txt", "--context", 64, "--batch", 1, "--accumulate", 1, "--evaluation-chunks", 1, "--threads", 1)
    done = cortado("linearize", tmp_path / "model", *options, "--method", method, "--window", 16, "--tokens", 128, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    written = [
        cortado("generate", folder, "--prompt", "ROMEO", "--n-tokens", 8, "--temperature", 0, "--threads", 1)
        for folder in (tmp_path / "model", tmp_path / "run")
    ]
    assert [it.returncode for it in written] == [0, 0], written
    if method == "lolcats":
        assert written[0].stdout == written[1].stdout
