"""What gpt-oss, Llama 4 and MiniMax-01 have beside their layers: MXFP4, images, positions in a part of each head."""

import json

import pytest
import torch
import transformers
from linear_models import LLAMA4, SIZES, model_of, random_weights
from safetensors.torch import load_file, save_file
from test_import_linear import check


@pytest.fixture(autouse=True)
def seeded():
    """Seeds what transformers draws when it makes a model."""
    torch.manual_seed(3)


def in_mxfp4(matrix):
    """[E, in, out] as published: the bytes of blocks of 32 inputs and their exponents."""
    numbers = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])
    blocks = matrix.transpose(1, 2).unflatten(2, (-1, 32))
    exponents = (blocks.abs().amax(-1).log2().floor() - 2).int()
    codes = (torch.ldexp(blocks, -exponents.unsqueeze(-1)).unsqueeze(-1) - numbers).abs().argmin(-1).byte()
    return codes[..., ::2] | codes[..., 1::2] << 4, (exponents + 127).byte()


def quantise(model, folder):
    """Rounds the model's experts to MXFP4, by transformers' own reading of the bytes that replace the folder's floats."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    tensors = load_file(folder / "model.safetensors")
    for name, parameter in model.named_parameters():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            blocks, scales = in_mxfp4(parameter.data)
            parameter.data = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
            tensors.update({f"{name}_blocks": blocks, f"{name}_scales": scales})
            del tensors[name]
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.mechanism("softmax", "sliding_window")
def test_mxfp4(cortado, build, tmp_path, monkeypatch):
    """Of a model whose sizes differ, so that no transposition goes unseen."""
    monkeypatch.setitem(SIZES, "hidden_size", 64)
    model = model_of("gpt_oss", monkeypatch)
    check(model, tmp_path, cortado, build, lambda folder: quantise(model, folder))


@pytest.mark.mechanism("softmax", "sliding_window")
@pytest.mark.parametrize(("change", "word"), [
    (lambda tensors, name: tensors.pop(f"{name}_scales"), "there is no"),
    (lambda tensors, name: tensors.update({f"{name}_scales": tensors[f"{name}_scales"][:, 1:].contiguous()}), "expected bytes"),
    (lambda tensors, name: tensors.update({f"{name}_blocks": tensors[f"{name}_blocks"].float()}), "expected bytes"),
])  # fmt: skip
def test_damaged_mxfp4_is_refused(change, word, cortado, tmp_path, monkeypatch):
    model = model_of("gpt_oss", monkeypatch)
    model.save_pretrained(tmp_path / "theirs")
    quantise(model, tmp_path / "theirs")
    tensors = load_file(tmp_path / "theirs" / "model.safetensors")
    change(tensors, "model.layers.1.mlp.experts.down_proj")
    save_file(tensors, tmp_path / "theirs" / "model.safetensors")
    done = cortado("import", tmp_path / "theirs", "--out", tmp_path / "ours")
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and word in done.stderr and "down_proj_scales" in done.stderr, done.stderr


@pytest.mark.mechanism("softmax", "sliding_window")
def test_gpt_oss_without_a_word_about_positions(cortado, build, tmp_path, monkeypatch):
    """Positions are stretched as in the published models, and every other layer has windows."""
    model = model_of("gpt_oss", monkeypatch)

    def change(folder):
        config = json.loads((folder / "config.json").read_text())
        for key in ("rope_parameters", "layer_types", "swiglu_limit", "swiglu_alpha", "attention_bias"):
            del config[key]
        (folder / "config.json").write_text(json.dumps(config))

    check(model, tmp_path, cortado, build, change)


@pytest.mark.mechanism("softmax", "sliding_window")
def test_the_text_part_of_llama4(cortado, build, tmp_path):
    vision = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, vision_output_dim=16, image_size=8, patch_size=4,
                  projector_input_dim=16, projector_output_dim=16)  # fmt: skip
    kind = transformers.Llama4ForConditionalGeneration
    model = random_weights(kind(kind.config_class(text_config={**SIZES, **LLAMA4}, vision_config=vision, image_token_index=66)))
    told = check(model, tmp_path, cortado, build)
    assert "vision_model." in told and "multi_modal_projector." in told, told


@pytest.mark.mechanism("softmax", "lightning")
def test_minimax_turns_a_part_of_each_head(cortado, build, tmp_path, monkeypatch):
    """As MiniMax's own program and transformers' MiniMax-M2; transformers' MiniMax-01 turns whole heads."""
    from transformers.models.minimax import modeling_minimax
    from transformers.models.minimax_m2 import modeling_minimax_m2

    whole = modeling_minimax.MiniMaxRotaryEmbedding

    def rotary(config, **_):
        rope = {**config.rope_parameters, "partial_rotary_factor": 0.5}
        part = transformers.MiniMaxM2Config(hidden_size=32, num_attention_heads=4, head_dim=8, rope_parameters=rope)
        return modeling_minimax_m2.MiniMaxM2RotaryEmbedding(part)

    rotary.compute_default_rope_parameters = whole.compute_default_rope_parameters
    monkeypatch.setattr(modeling_minimax, "MiniMaxRotaryEmbedding", rotary)
    monkeypatch.setattr(modeling_minimax, "apply_rotary_pos_emb", modeling_minimax_m2.apply_rotary_pos_emb)
    model = model_of("minimax", monkeypatch)

    def change(folder):
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "rotary_dim": 4}))

    check(model, tmp_path, cortado, build, change)


@pytest.mark.mechanism("softmax", "sliding_window", "lolcats")
@pytest.mark.parametrize(("name", "word"), [("gpt_oss", "sinks"), ("llama4", "temperature_period")])
def test_what_nothing_else_has_is_not_converted(name, word, cortado, tmp_path, monkeypatch):
    monkeypatch.setitem(SIZES, "vocab_size", 256)
    model_of(name, monkeypatch).save_pretrained(tmp_path / "theirs")
    (tmp_path / "text.txt").write_text("some text " * 1000)
    done = cortado("linearize", tmp_path / "theirs", "--data", tmp_path / "text.txt", "--out", tmp_path / "ours")
    *_, line = done.stderr.splitlines()  # after what it says of the import
    assert done.returncode == 2 and word in line and "--keep" in line, done.stderr
