"""RWKV-6 and RWKV-7 in their authors' own files, against the authors' program (package rwkv) and flash-linear-attention."""

import json
import os

import pytest
import torch
from gguf_rwkv_files import MODELS, as_published
from safetensors.torch import save_file
from test_import_linear import check_imported, fla_model, needs


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(3)


@pytest.fixture
def made(monkeypatch):
    """made(name) -> the model, with the authors' epsilons: 64e-5 in the norms over heads, 1e-5 in the others."""

    def make(name):
        model = fla_model(*MODELS[name], monkeypatch)
        for module in model.modules():
            if isinstance(module, torch.nn.LayerNorm):
                module.eps = 1e-5
        return model

    return make


def own_names_6(model):
    """RWKV-6's tensors as its authors train and publish them."""
    for name, values in as_published(model):
        for old, new in (("rwkv.blocks", "blocks"), ("rwkv.embeddings", "emb"), ("rwkv.", ""), (".attention.", ".att."), (".feed_forward.", ".ffn."),
                         (".pre_ln.", ".ln0.")):  # fmt: skip
            name = name.replace(old, new)
        yield name, torch.tensor(values).contiguous()


def own_names_7(model):
    """RWKV-7's tensors as its authors train and publish them: the first block has maps of values, which it does not use."""
    names = {"model.embeddings": "emb", "model.norm": "ln_out", "lm_head": "head", "model.layers": "blocks", ".attn_norm": ".ln1", ".ffn_norm": ".ln2",
             ".pre_norm": ".ln0", ".attn.g_norm": ".att.ln_x", ".attn.": ".att.", ".r_proj": ".receptance", ".k_proj": ".key", ".v_proj": ".value",
             ".o_proj": ".output", "_lora.lora.0.weight": "1", "_lora.lora.2.weight": "2", "_lora.lora.2.bias": "0"}  # fmt: skip
    for name, tensor in model.state_dict().items():
        for old, new in names.items():
            name = name.replace(old, new)
        tensor = tensor.float()
        if name[-2:] in {which + number for which in "wavg" for number in "12"}:
            tensor = tensor.T
        if name[-2:] in ("w0", "a0", "v0", "k_k", "k_a") or name.endswith("x_k"):
            tensor = tensor.view(1, 1, -1)
        yield name, tensor.contiguous()
        if name.startswith("blocks.0.att.a") and name[-1] in "012":
            yield name.replace("att.a", "att.v"), tensor.clone()


def own_names(model):
    return dict(own_names_7(model) if model.config.model_type == "rwkv7" else own_names_6(model))


def write(folder, tensors, name="RWKV.safetensors", config=None):
    folder.mkdir()
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, folder / name)
    if config:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("name", [needs(name) for name in MODELS if name != "rwkv7"])
def test_the_authors_file(name, made, cortado, build, tmp_path):
    model = made(name)
    done = cortado("import", write(tmp_path / "theirs", own_names(model)), "--out", tmp_path / "ours")
    assert done.returncode == 0, done.stderr
    check_imported(model, tmp_path, build)
    done = cortado("describe", tmp_path / "theirs")
    assert done.returncode == 0, done.stderr


@pytest.mark.mechanism("rwkv7", "rwkv7_channel_mix")
@pytest.mark.parametrize("name", ["rwkv7", "rwkv7_wide"])
def test_the_authors_program(name, made, cortado, build, close, monkeypatch, tmp_path):
    """The norms over heads have the epsilon 64e-5 in it, at any size of heads."""
    monkeypatch.setenv("RWKV_V7_ON", "1")
    from rwkv.model import RWKV_x070

    tensors = own_names(made(name))
    folder = write(tmp_path / "theirs", tensors)
    torch.save(tensors, tmp_path / "model.pth")
    theirs = RWKV_x070(model=str(tmp_path / "model"), strategy="cpu fp32")
    done = cortado("import", folder, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    torch.classes.load_library(str(build / "lib" / "libcortado.so"))
    ours = torch.classes.cortado.LanguageModel(str(tmp_path / "run"), "float32", "")
    tokens = torch.randint(67, (1, 33))
    expected, _ = theirs.forward(tokens[0].tolist(), None, full_output=True)
    close(ours.forward(tokens)[0], expected, 1e-4, "logits")


@pytest.mark.mechanism("rwkv6", "rwkv4_channel_mix")
def test_a_folder_with_code_of_its_own(made, cortado, build, tmp_path):
    """Such as RWKV/v6-Finch-1B6-HF."""
    model = made("rwkv6_wide")
    config = {"model_type": "rwkv6", "hidden_size": model.config.hidden_size, "head_size": 16, "attention_hidden_size": model.config.hidden_size,
              "num_hidden_layers": model.config.num_hidden_layers, "vocab_size": 67, "rescale_every": 6}  # fmt: skip
    tensors = {name: torch.tensor(values) for name, values in as_published(model)}
    done = cortado("import", write(tmp_path / "theirs", tensors, "model.safetensors", config), "--out", tmp_path / "ours")
    assert done.returncode == 0, done.stderr
    check_imported(model, tmp_path, build)


@pytest.mark.parametrize("name", [needs("rwkv6_wide"), needs("rwkv7_wide")])
def test_a_converters_file(name, made, cortado, build, tmp_path):
    """.st files, which other programs read: some names differ, and matrices of low rank are transposed."""
    model = made(name)
    ends = ["w1", "w2", "a1", "a2", "g1", "g2", "v1", "v2"]
    tensors = {}
    for key, tensor in own_names(model).items():
        low_rank = any(key.endswith(end) for end in ends)
        key = key.replace("time_maa_", "time_mix_").replace("time_faaaa", "time_first")
        tensors[key] = tensor.transpose(-1, -2) if low_rank else tensor
    done = cortado("import", write(tmp_path / "theirs", tensors, "model.st"), "--out", tmp_path / "ours")
    assert done.returncode == 0, done.stderr
    check_imported(model, tmp_path, build)


@pytest.mark.mechanism("rwkv7", "rwkv7_channel_mix")
def test_what_is_refused(made, refused, tmp_path):
    tensors = own_names(made("rwkv7_wide"))
    out = ("--out", tmp_path / "ours")
    less = {key: tensor for key, tensor in tensors.items() if key != "blocks.1.att.k_k"}
    assert "k_k" in refused("import", write(tmp_path / "less", less), *out)
    flat = {**tensors, "emb.weight": tensors["emb.weight"][0]}
    assert "expected 2 dimensions" in refused("import", write(tmp_path / "flat", flat), *out)
    early = {key: tensor for key, tensor in tensors.items() if not key.endswith("r_k")}
    assert "before RWKV-6" in refused("import", write(tmp_path / "early", early), *out)
    (tmp_path / "pickled").mkdir()
    torch.save(tensors, tmp_path / "pickled" / "RWKV-x070.pth")
    line = refused("import", tmp_path / "pickled", *out)
    assert "RWKV-x070.pth" in line and "save_file" in line
    exec(line.partition("model.safetensors: ")[2], {})
    assert os.path.exists(tmp_path / "pickled" / "model.safetensors")
