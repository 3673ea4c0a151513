"""`cortado import` of GGUF files of linear-time models and of models with experts, against transformers."""

import gguf
import numpy as np
import pytest
import torch
from gguf_linear_files import ARCHITECTURES, F32, write_linear_gguf
from linear_models import STATES, model_of
from test_import_linear import check_imported, needs

Q8_0 = gguf.GGMLQuantizationType.Q8_0


@pytest.fixture(autouse=True)
def seeded():
    """Seeds what transformers draws when it makes a model."""
    torch.manual_seed(3)


@pytest.fixture
def made(monkeypatch):
    """made(name) -> the model and the architecture of its file."""

    def make(name):
        architecture, special = ARCHITECTURES[name]
        kind, options = STATES[name]
        monkeypatch.setitem(STATES, name, (kind, {**options, **special}))
        return model_of(name, monkeypatch), architecture

    return make


@pytest.mark.parametrize("name", [needs(name) for name in ARCHITECTURES])
def test_a_gguf_file(name, made, cortado, build, tmp_path):
    model, architecture = made(name)
    write_linear_gguf(tmp_path / "model.gguf", model, architecture, tokenizer="no_vocab")
    done = cortado("import", tmp_path / "model.gguf", "--out", tmp_path / "ours")
    assert done.returncode == 0, done.stderr
    check_imported(model, tmp_path, build)


@pytest.mark.parametrize("name", [needs("qwen3_5_moe_text"), needs("mamba2")])
def test_blocks_are_the_numbers_that_they_stand_for(name, made, cortado, tmp_path):
    """Experts are read one by one. The same file with the decoded numbers gives the same weights."""
    model, architecture = made(name)

    def in_blocks(_, values):
        return (gguf.quants.quantize(values, Q8_0), Q8_0) if values.shape[-1] % 32 == 0 and values.ndim > 1 else (values, F32)

    def decoded(tensor, values):
        data, kind = in_blocks(tensor, values)
        return gguf.quants.dequantize(data, kind).astype(np.float32), F32

    for run, stored in (("blocks", in_blocks), ("numbers", decoded)):
        write_linear_gguf(tmp_path / f"{run}.gguf", model, architecture, stored=stored)
        done = cortado("import", tmp_path / f"{run}.gguf", "--out", tmp_path / run)
        assert done.returncode == 0, done.stderr
    blocks, numbers = (torch.classes.cortado.LanguageModel(str(tmp_path / run), "float32", "").parameters() for run in ("blocks", "numbers"))
    assert blocks.keys() == numbers.keys()
    assert all(torch.equal(weight, numbers[key]) for key, weight in blocks.items())


@pytest.mark.mechanism("mamba2")
def test_ones_that_a_quantizer_drops(made, cortado, build, tmp_path):
    """llama.cpp's quantizer writes the norm of Mamba-2 with one group, [1, E], as [E]."""
    model, architecture = made("mamba2_wide")
    write_linear_gguf(tmp_path / "model.gguf", model, architecture, stored=lambda name, values: (values.reshape(-1) if "ssm_norm" in name else values, F32))
    done = cortado("import", tmp_path / "model.gguf", "--out", tmp_path / "ours")
    assert done.returncode == 0, done.stderr
    check_imported(model, tmp_path, build)


@pytest.mark.mechanism("gated_delta_net")
def test_layers_for_several_tokens_are_left_out(made, cortado, build, tmp_path):
    model, architecture = made("qwen3_5_text")
    more = [("blk.4.nextn.eh_proj.weight", np.zeros((2, 2), np.float32)), ("blk.4.attn_norm.weight", np.zeros(32, np.float32))]
    write_linear_gguf(tmp_path / "model.gguf", model, architecture, {"block_count": 5, "nextn_predict_layers": 1}, more=more)
    done = cortado("import", tmp_path / "model.gguf", "--out", tmp_path / "ours")
    assert done.returncode == 0 and "left out: blk.4. (2 tensors)" in done.stdout, (done.stdout, done.stderr)
    check_imported(model, tmp_path, build)


@pytest.mark.mechanism("lightning")
def test_positions_on_a_part_of_each_head(made, cortado, build, monkeypatch, tmp_path):
    """Published files of MiniMax-01 turn the first half of each head. transformers turns whole heads, so that it is taught here."""
    from transformers.models.minimax import modeling_minimax

    whole = modeling_minimax.apply_rotary_pos_emb

    def first_channels(q, k, cos, sin, **options):
        turned = cos.shape[-1]
        parts = whole(q[..., :turned], k[..., :turned], cos, sin, **options)
        return tuple(torch.cat([part, x[..., turned:]], -1) for part, x in zip(parts, (q, k)))

    model, architecture = made("minimax")
    write_linear_gguf(tmp_path / "model.gguf", model, architecture, {"rope.dimension_count": 4})
    monkeypatch.setattr(modeling_minimax, "apply_rotary_pos_emb", first_channels)
    model.model.rotary_emb = modeling_minimax.MiniMaxRotaryEmbedding(type(model.config)(**{**model.config.to_dict(), "head_dim": 4}))
    done = cortado("import", tmp_path / "model.gguf", "--out", tmp_path / "ours")
    assert done.returncode == 0, done.stderr
    check_imported(model, tmp_path, build)


@pytest.mark.mechanism("gated_delta_net")
def test_layers_by_their_distance(made, cortado, build, tmp_path):
    """Files of early converters have no list of layers."""
    model, architecture = made("qwen3_5_text")
    write_linear_gguf(tmp_path / "model.gguf", model, architecture, {"attention.recurrent_layers": None})
    done = cortado("import", tmp_path / "model.gguf", "--out", tmp_path / "ours")
    assert done.returncode == 0, done.stderr
    check_imported(model, tmp_path, build)


@pytest.mark.mechanism("gated_delta_net")
def test_a_joint_map_of_early_files(made, cortado, build, tmp_path):
    model, architecture = made("qwen3_next_experts")
    write_linear_gguf(tmp_path / "model.gguf", model, architecture, early=True)
    assert any(tensor.name == "blk.0.ssm_in.weight" for tensor in gguf.GGUFReader(tmp_path / "model.gguf").tensors)
    done = cortado("import", tmp_path / "model.gguf", "--out", tmp_path / "ours")
    assert done.returncode == 0, done.stderr
    check_imported(model, tmp_path, build)


REFUSED = [
    ("mamba", {"ssm.inner_size": 65}, "intermediate_size"),
    ("mamba", {"ssm.state_size": 6}, "blk.0.ssm_x.weight"),
    ("mamba", {"block_count": 4}, "blk.3."),
    ("mamba", {"block_count": 2}, "blk.2."),
    ("mamba2", {"ssm.inner_size": 65}, "ssm.inner_size"),
    ("mamba2", {"ssm.group_count": 3}, "n_groups"),
    ("jamba", {"attention.head_count_kv": [0, 0, 0]}, "key heads"),
    ("jamba", {"attention.head_count_kv": [0, 2]}, "attention.head_count_kv"),
    ("jamba", {"attention.head_count_kv": [0, 0, 2]}, "blk.1.ssm_in.weight"),
    ("jamba_experts", {"attention.head_count_kv": [0, 2, 0, 2, 2]}, "irregular"),
    ("qwen3_moe", {"expert_gating_func": 2}, "expert_gating_func"),
    ("qwen3_moe", {"attention.value_length": 16}, "values of 16"),
    ("granitemoehybrid", {"attention.key_length": 9, "attention.value_length": 9}, "an odd number"),
    ("qwen3_moe", {"rope.dimension_count": 6}, "a part of each head"),
    ("qwen3_moe", {"rope.scaling.type": "dynamic", "rope.scaling.factor": 2.0}, "dynamic"),
    ("qwen3_5_text", {"attention.recurrent_layers": [True]}, "recurrent_layers"),
    ("lfm2", {"attention.sliding_window": 5}, "windows"),
    ("lfm2", {"shortconv.l_cache": 4}, "blk.0.shortconv.conv.weight"),
    ("falcon_h1", {"ssm.inner_size": 40}, "blk.0.ssm_in.weight"),
    ("nemotron_h", {"expert_count": 4}, "expert_feed_forward_length"),
    ("nemotron_h", {"feed_forward_length": [0, 40, 0, 0, 20]}, "different widths"),
    ("nemotron_h", {"feed_forward_length": [0, 40, 0, 0, 0]}, "blk.4"),
    ("nemotron_h_experts", {"expert_feed_forward_length": [0, 22, 0, 0, 20]}, "different widths"),
    ("nemotron_h_experts", {"expert_used_count": 9}, "num_experts_per_tok"),
    ("nemotron_h_latent", {"moe_latent_size": 17}, "ffn_up_exps"),
    ("kimi_linear", {"attention.q_lora_rank": 4}, "q_lora_rank"),
    ("kimi_linear", {"expert_gating_func": 1}, "expert_gating_func"),
    ("kimi_linear", {"attention.key_length_mla": 4}, "key_length_mla"),
    ("kimi_linear", {"kda.head_dim": 9}, "blk.0.attn_q.weight"),
    ("minimax", {"rope.dimension_count": 20}, "partial_rotary_factor"),
    ("minimax", {"attention.recurrent_layers": [True]}, "recurrent_layers"),
    ("olmo3", {"attention.sliding_window_pattern": [True]}, "sliding_window_pattern"),
    ("qwen3_5_text", {"ssm.time_step_rank": 5}, "time_step_rank"),
]


@pytest.mark.parametrize(("name", "keys", "words"), [pytest.param(name, keys, words, marks=needs(name).marks) for name, keys, words in REFUSED])
def test_what_is_not_computed_is_refused(name, keys, words, made, refused, tmp_path):
    model, architecture = made(name)
    write_linear_gguf(tmp_path / "model.gguf", model, architecture, keys)
    line = refused("import", tmp_path / "model.gguf", "--out", tmp_path / "ours")
    assert words in line and "model.gguf" in line and not (tmp_path / "ours").exists(), line


@pytest.mark.mechanism("mamba")
def test_experts_at_unequal_distances_are_refused(made, refused, tmp_path):
    model, architecture = made("jamba_mixed")  # in layers 1 and 3 of 5
    write_linear_gguf(tmp_path / "model.gguf", model, architecture, more=[("blk.0.ffn_gate_inp.weight", np.zeros((4, 32), np.float32))])
    assert "experts in layers 0 and 1, but then not" in refused("import", tmp_path / "model.gguf", "--out", tmp_path / "ours")
