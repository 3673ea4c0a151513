"""GGUF files of RWKV-6 and RWKV-7, read and written, against flash-linear-attention. bench/peers/written_gguf.py asks llama.cpp."""

import gguf
import pytest
import torch
from gguf_rwkv_files import LLAMA_CPP, MODELS, write_rwkv_gguf
from test_import_linear import check_imported, fla_model, needs

@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(3)


@pytest.fixture
def made(monkeypatch):
    """made(name, more settings) -> the model."""
    return lambda name, **more: fla_model(MODELS[name][0], {**MODELS[name][1], **more}, monkeypatch)


@pytest.mark.parametrize("name", [needs(name) for name in MODELS])
def test_a_gguf_file(name, made, cortado, build, tmp_path):
    model = made(name)
    done = cortado("import", write_rwkv_gguf(tmp_path / "model.gguf", model), "--out", tmp_path / "ours")
    assert done.returncode == 0, done.stderr
    check_imported(model, tmp_path, build)


@pytest.mark.mechanism("rwkv6", "rwkv4_channel_mix")
def test_halved_blocks(made, cortado, build, tmp_path):
    """The converter divides the blocks' outputs by 2, 4, ..., and llama.cpp halves the stream after each so many blocks. Here nothing is halved."""
    model = made("rwkv6", num_hidden_layers=5)
    done = cortado("import", write_rwkv_gguf(tmp_path / "model.gguf", model, rescale=2), "--out", tmp_path / "ours")
    assert done.returncode == 0, done.stderr
    check_imported(model, tmp_path, build)


@pytest.mark.mechanism("rwkv6", "rwkv4_channel_mix")
def test_five_mixes(made, cortado, build, tmp_path):
    model = made("rwkv6_wide")
    done = cortado("import", write_rwkv_gguf(tmp_path / "model.gguf", model, separate=True), "--out", tmp_path / "ours")
    assert done.returncode == 0, done.stderr
    check_imported(model, tmp_path, build)


def of(name, *more):
    """A case that needs the model's mechanisms."""
    return pytest.param(name, *more, marks=needs(name).marks)


@pytest.mark.parametrize(
    ("name", "keys", "words"),
    [of("rwkv6", {"wkv.head_size": 5}, "wkv.head_size"), of("rwkv6", {"token_shift_count": 1}, "token_shift_count"),
     of("rwkv6", {"time_mix_extra_dim": 7}, "time_mix_w1"), of("rwkv7", {"wkv.head_size": 5}, "head_dim"), of("rwkv7", {"block_count": 2}, "blk.2"),
     of("rwkv7", {"attention.gate_lora_rank": 9}, "time_mix_g1")],
)  # fmt: skip
def test_what_is_not_computed_is_refused(name, keys, words, made, refused, tmp_path):
    line = refused("import", write_rwkv_gguf(tmp_path / "model.gguf", made(name), keys), "--out", tmp_path / "ours")
    assert words in line and "model.gguf" in line, line


@pytest.mark.parametrize("name", [needs(name) for name in LLAMA_CPP])
def test_a_written_file(name, made, cortado, mixer, close, tmp_path):
    """It has the converter's tensors and metadata, and gives the same model."""
    model = made(name)
    model.save_pretrained(tmp_path / "theirs")
    wanted = write_rwkv_gguf(tmp_path / "wanted.gguf", model)
    for command in (["import", tmp_path / "theirs", "--out", tmp_path / "run"], ["import", wanted, "--out", tmp_path / "again"],
                    ["export", tmp_path / "again", "--gguf", tmp_path / "model.gguf"]):  # fmt: skip
        done = cortado(*command)
        assert done.returncode == 0, done.stderr
    found, expected = (gguf.GGUFReader(tmp_path / f"{it}.gguf") for it in ("model", "wanted"))
    tensors, theirs = ({tensor.name: torch.tensor(tensor.data).squeeze() for tensor in reader.tensors} for reader in (found, expected))
    assert tensors.keys() == theirs.keys()
    for key, tensor in theirs.items():
        if "blk.0.time_mix_v" not in key or key.endswith("value.weight"):  # the first block's are not used
            close(tensors[key], tensor, 1e-6, key)
    for key in [key for key in expected.fields if key.startswith(model.config.model_type)]:
        if not key.endswith(("context_length", "rescale_every_n_layers")):
            assert found.get_field(key).contents() == expected.get_field(key).contents(), key
    ours, again = (torch.classes.cortado.LanguageModel(str(tmp_path / it), "float32", "") for it in ("run", "again"))
    tokens = torch.randint(67, (2, 40))
    close(again.forward(tokens), ours.forward(tokens), 1e-4, "logits")


@pytest.mark.parametrize(
    ("name", "more", "words"),
    [of("rwkv6", {"expand_k": 0.5}, "another width"), of("rwkv6", {"tie_word_embeddings": True}, "head of rwkv6"),
     of("rwkv6", {"norm_first": False}, '"embedding"'), of("rwkv7_wide", {"norm_eps": 1e-4}, '"norm_eps"'), of("rwkv7_wide", {"norm_bias": False}, '"norm_bias"'),
     of("rwkv7", {}, "heads of 8 channels")],
)  # fmt: skip
def test_what_llama_cpp_has_not(name, more, words, made, cortado, refused, tmp_path):
    made(name, **more).save_pretrained(tmp_path / "theirs")
    assert cortado("import", tmp_path / "theirs", "--out", tmp_path / "run").returncode == 0
    assert words in refused("export", tmp_path / "run", "--gguf", tmp_path / "model.gguf")
