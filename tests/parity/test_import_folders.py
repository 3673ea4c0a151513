"""Folders in other forms: mamba_ssm's own, floats of 8 bits, and what is refused with a way out."""

import json
import os
import sys

import pytest
import torch
import transformers
from linear_models import SIZES, model_of, random_weights
from pretrained_models import make_model
from safetensors.torch import load_file, save_file
from test_import_linear import check_imported

BLOCK = (16, 32)
KEYS = {"hidden_size": "d_model", "num_hidden_layers": "n_layer", "tie_word_embeddings": "tie_embeddings"}


@pytest.fixture(autouse=True)
def seeded():
    """Seeds what transformers draws when it makes a model."""
    torch.manual_seed(3)


def as_mamba_ssm(folder, **ssm):
    """Makes transformers' folder one of mamba_ssm. Returns its config."""
    config = json.loads((folder / "config.json").read_text())
    ours = {ours: config[theirs] for theirs, ours in KEYS.items()}
    ours |= {"vocab_size": 67, "rms_norm": True, "residual_in_fp32": True, "fused_add_norm": True, "pad_vocab_size_multiple": 8 if config["vocab_size"] == 72 else 1, "ssm_cfg": ssm}
    (folder / "config.json").write_text(json.dumps(ours))
    tensors = load_file(folder / "model.safetensors")
    if config["tie_word_embeddings"]:  # it saves both
        tensors["lm_head.weight"] = tensors["backbone.embeddings.weight"].clone()
    save_file({name.replace("embeddings.", "embedding."): tensor for name, tensor in tensors.items()}, folder / "model.safetensors")
    return ours


@pytest.mark.parametrize(("name", "ssm"), [
    pytest.param("mamba", {"d_state": 5}, marks=pytest.mark.mechanism("mamba")),
    pytest.param("mamba_wide", {"layer": "Mamba1", "d_state": 4, "dt_rank": 7, "d_conv": 3, "bias": True, "conv_bias": False, "expand": 3},
                 marks=pytest.mark.mechanism("mamba")),
    pytest.param("mamba2", {"layer": "Mamba2", "d_state": 6, "headdim": 8, "ngroups": 2, "chunk_size": 4}, marks=pytest.mark.mechanism("mamba2")),
])  # fmt: skip
def test_mamba_ssm(name, ssm, cortado, build, monkeypatch, tmp_path):
    """A vocabulary of 67 tokens, and an embedding of 72 rows."""
    monkeypatch.setitem(SIZES, "vocab_size", 72)
    model = model_of(name, monkeypatch)
    model.save_pretrained(tmp_path / "theirs")
    as_mamba_ssm(tmp_path / "theirs", **ssm)
    done = cortado("import", tmp_path / "theirs", "--out", tmp_path / "ours")
    assert done.returncode == 0, done.stderr
    check_imported(model, tmp_path, build)
    done = cortado("describe", tmp_path / "theirs")
    assert done.returncode == 0, done.stderr


@pytest.mark.mechanism("mamba")
def test_what_mamba_ssm_can_and_this_cannot(refused, monkeypatch, tmp_path):
    model_of("mamba", monkeypatch).save_pretrained(tmp_path / "theirs")
    config = as_mamba_ssm(tmp_path / "theirs", d_state=5)
    for changes, word in (({"rms_norm": False}, "rms_norm"), ({"d_intermediate": 8}, "d_intermediate"), ({"attn_layer_idx": [1]}, "attn_layer_idx"),
                          ({"ssm_cfg": {"layer": "Mamba4"}}, "Mamba4"), ({"ssm_cfg": {"d_stat": 5}}, "d_stat"),
                          ({"ssm_cfg": {"layer": "Mamba2", "norm_before_gate": True}}, "norm_before_gate"),
                          ({"ssm_cfg": {"layer": "Mamba2", "headdim": 7}}, "headdim")):  # fmt: skip
        (tmp_path / "theirs" / "config.json").write_text(json.dumps({**config, **changes}))
        assert word in refused("import", tmp_path / "theirs", "--out", tmp_path / "ours"), changes


def told_lines(line):
    """The Python that a refusal suggests."""
    return line.partition("write model.safetensors: ")[2]


def test_pickled_weights(refused, cortado, tmp_path):
    """What the line suggests makes the folder open."""
    model, _ = make_model("llama2")
    model.save_pretrained(tmp_path / "theirs")
    tensors = load_file(tmp_path / "theirs" / "model.safetensors")
    os.remove(tmp_path / "theirs" / "model.safetensors")
    torch.save(tensors, tmp_path / "theirs" / "pytorch_model.bin")
    line = refused("import", tmp_path / "theirs", "--out", tmp_path / "ours")
    assert "AutoModelForCausalLM" in told_lines(line), line
    exec(told_lines(line), {})
    done = cortado("import", tmp_path / "theirs", "--out", tmp_path / "ours")
    assert done.returncode == 0, done.stderr


@pytest.mark.mechanism("mamba")
def test_pickled_weights_of_mamba_ssm(refused, cortado, monkeypatch, tmp_path):
    model_of("mamba", monkeypatch).save_pretrained(tmp_path / "theirs")
    as_mamba_ssm(tmp_path / "theirs", d_state=5)
    tensors = load_file(tmp_path / "theirs" / "model.safetensors")
    os.remove(tmp_path / "theirs" / "model.safetensors")
    torch.save({**tensors, "lm_head.weight": tensors["backbone.embedding.weight"]}, tmp_path / "theirs" / "pytorch_model.bin")
    line = refused("import", tmp_path / "theirs", "--out", tmp_path / "ours")
    assert "torch.load" in told_lines(line), line
    exec(told_lines(line), {})
    done = cortado("import", tmp_path / "theirs", "--out", tmp_path / "ours")
    assert done.returncode == 0, done.stderr


def in_8_bits(folder, model):
    """Makes the folder one with floats of 8 bits, and gives the model their values."""
    tensors = load_file(folder / "model.safetensors")
    weights = model.state_dict()
    for name, weight in list(tensors.items()):
        if weight.dim() != 2 or "embed" in name or "lm_head" in name or name.endswith("gate.weight"):
            continue
        rows, columns = (-(-size // block) for size, block in zip(weight.shape, BLOCK))
        padded = torch.zeros(rows * BLOCK[0], columns * BLOCK[1])
        padded[: weight.shape[0], : weight.shape[1]] = weight
        blocks = padded.reshape(rows, BLOCK[0], columns, BLOCK[1])
        scales = blocks.abs().amax((1, 3)).clamp_min(1e-6) / 448
        small = (blocks / scales[:, None, :, None]).to(torch.float8_e4m3fn)
        read = (small.float() * scales[:, None, :, None]).reshape(padded.shape)[: weight.shape[0], : weight.shape[1]]
        tensors[name] = small.reshape(padded.shape)[: weight.shape[0], : weight.shape[1]].contiguous()
        tensors[f"{name}_scale_inv"] = scales
        with torch.no_grad():
            if name in weights:
                weights[name].copy_(read)
            else:  # an expert
                place, _, rest = name.partition(".experts.")
                number, part, _ = rest.split(".")
                joint = weights[f"{place}.experts.{'down_proj' if part == 'down_proj' else 'gate_up_proj'}"][int(number)]
                half = joint.shape[0] // 2
                (joint if part == "down_proj" else joint[:half] if part == "gate_proj" else joint[half:]).copy_(read)
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": BLOCK}
    (folder / "config.json").write_text(json.dumps(config))
    return config


@pytest.mark.parametrize("name", ["qwen3", "phi3", pytest.param("qwen3_next_experts", marks=pytest.mark.mechanism("gated_delta_net"))])
def test_floats_of_8_bits(name, cortado, ops, build, monkeypatch, tmp_path):
    """The weights are those of the model with the decoded numbers."""
    torch.classes.load_library(str(build / "lib" / "libcortado.so"))
    model = model_of(name, monkeypatch) if "next" in name else make_model(name)[0]
    model.save_pretrained(tmp_path / "small")
    before = {key: weight.clone() for key, weight in model.state_dict().items()}
    in_8_bits(tmp_path / "small", model)
    assert sum(not torch.equal(weight, before[key]) for key, weight in model.state_dict().items()) > 10
    model.save_pretrained(tmp_path / "decoded")
    found = []
    for folder in ("small", "decoded"):
        done = cortado("import", tmp_path / folder, "--out", tmp_path / f"{folder}-run")
        assert done.returncode == 0, done.stderr
        found.append(torch.classes.cortado.LanguageModel(str(tmp_path / f"{folder}-run"), "float32", "").parameters())
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(weight, found[1][key]) for key, weight in found[0].items())


def test_transformers_reads_the_same_from_floats_of_8_bits(cortado, build, monkeypatch, tmp_path):
    """Without a GPU it decodes them. Its blocks must divide the matrices."""
    monkeypatch.setattr(sys.modules[__name__], "BLOCK", (16, 16))
    model, _ = make_model("qwen3")
    model.save_pretrained(tmp_path / "theirs")
    in_8_bits(tmp_path / "theirs", model)
    decoding = transformers.FineGrainedFP8Config(weight_block_size=BLOCK, dequantize=True)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "theirs", dtype=torch.float32, attn_implementation="eager", quantization_config=decoding
    )
    done = cortado("import", tmp_path / "theirs", "--out", tmp_path / "ours")
    assert done.returncode == 0, done.stderr
    check_imported(theirs.eval(), tmp_path, build)


@pytest.mark.parametrize("method", ["gptq", "awq", "compressed-tensors", "bitsandbytes", "fp8"])
def test_other_quantisations_are_refused_by_name(method, refused, tmp_path):
    make_model("qwen3")[0].save_pretrained(tmp_path / "theirs")
    path = tmp_path / "theirs" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "quantization_config": {"quant_method": method, "bits": 4}}))
    line = refused("import", tmp_path / "theirs", "--out", tmp_path / "ours")
    assert f'quantised by "{method}"' in line and "GGUF" in line, line


def test_scales_that_do_not_fit(refused, tmp_path):
    model, _ = make_model("qwen3")
    model.save_pretrained(tmp_path / "theirs")
    config = in_8_bits(tmp_path / "theirs", model)
    good = load_file(tmp_path / "theirs" / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    scales = good[f"{name}_scale_inv"]

    def line(changes):
        tensors = {**good, **changes}
        save_file({key: value for key, value in tensors.items() if value is not None}, tmp_path / "theirs" / "model.safetensors")
        return refused("import", tmp_path / "theirs", "--out", tmp_path / "ours")

    assert f"there is no {name}_scale_inv" in line({f"{name}_scale_inv": None})
    assert f"{name}_scale_inv is Float [4, 2], expected [5, 2]" in line({f"{name}_scale_inv": scales[:4].contiguous()})
    assert "x_scale_inv has scales for no matrix" in line({"x_scale_inv": scales.clone()})
    (tmp_path / "theirs" / "config.json").write_text(json.dumps({key: value for key, value in config.items() if key != "quantization_config"}))
    assert "has floats of 8 bits" in line({})


IMAGES = {
    "gemma3": (transformers.Gemma3ForConditionalGeneration, dict(model_type="siglip_vision_model", hidden_size=16, intermediate_size=8, num_hidden_layers=1,
                                                                 num_attention_heads=2, image_size=28, patch_size=14)),
    "mistral3": (transformers.Mistral3ForConditionalGeneration, dict(model_type="pixtral", hidden_size=16, intermediate_size=8, num_hidden_layers=1,
                                                                     num_attention_heads=2, head_dim=8, image_size=28, patch_size=14)),
}  # fmt: skip


@pytest.mark.mechanism("softmax", "sliding_window")
@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("name", IMAGES)
def test_the_text_part_of_a_model_with_images(name, published, cortado, build, tmp_path):
    """`published`: by the names of tensors that transformers had when these models came out."""
    kind, vision = IMAGES[name]
    text = make_model("gemma3_text" if name == "gemma3" else "mistral_full")[0].config.to_dict()
    model = kind(kind.config_class(text_config=text, vision_config=vision, mm_tokens_per_image=1, image_token_index=5, attn_implementation="eager")).eval()
    random_weights(model)
    model.save_pretrained(tmp_path / "theirs")
    if published:
        tensors = load_file(tmp_path / "theirs" / "model.safetensors")
        save_file({key.replace("model.language_model.", "language_model.model.").replace("model.vision_tower.", "vision_tower."): tensor
                   for key, tensor in tensors.items()}, tmp_path / "theirs" / "model.safetensors")  # fmt: skip
    done = cortado("import", tmp_path / "theirs", "--out", tmp_path / "ours")
    assert done.returncode == 0 and "left out: multi_modal_projector. (" in done.stdout + done.stderr, done.stderr
    check_imported(model, tmp_path, build)


@pytest.mark.mechanism("softmax", "sliding_window")
def test_a_text_part_that_says_little(cortado, tmp_path):
    """Google's folders of Gemma-3 say only what differs from the class's defaults."""
    text = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=2, model_type="gemma3_text", sliding_window=7)
    model = transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(**text))
    model.save_pretrained(tmp_path / "theirs")
    tensors = load_file(tmp_path / "theirs" / "model.safetensors")
    save_file({key.replace("model.", "language_model.model."): tensor for key, tensor in tensors.items()}, tmp_path / "theirs" / "model.safetensors")
    (tmp_path / "theirs" / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": text, "vision_config": {}}))
    done = cortado("import", tmp_path / "theirs", "--out", tmp_path / "ours")
    assert done.returncode == 0, done.stderr
    config = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert config["vocabulary"] == 262208 and config["embedding"]["tied"] and config["mixer"]["heads"] == 8, config
