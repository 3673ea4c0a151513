"""`cortado import` of linear-time models against their own programs: Mamba, Mamba-2, FalconMamba, RWKV-4, RecurrentGemma,
Qwen3-Next, Qwen3.5, Bamba, Granite 4, Jamba, LFM2, OLMo Hybrid, Falcon-H1, Nemotron-H and Zamba2 of transformers, and of gpt-oss and Llama 4; GLA, RetNet, DeltaNet, Gated DeltaNet, Gated DeltaProduct, HGRN2, RWKV-6 and RWKV-7 of flash-linear-attention, whose models run on the CPU once
fla-core's naive functions stand in for its kernels."""

import json

import pytest
import torch
import transformers
from linear_models import SIZES, STATES, model_of, random_weights
from torch import nn
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

TOLERANCE = 3e-5
FLA = {
    "gla": ("GLA", {}),
    "gla_wide": ("GLA", dict(use_short_conv=True, expand_k=1.0, expand_v=2.0, feature_map="relu", num_heads=2, hidden_ratio=2)),
    "retnet": ("RetNet", {"num_heads": 4}),
    "retnet_tied": ("RetNet", dict(num_heads=2, use_short_conv=True, tie_word_embeddings=True, intermediate_size=48)),
    "delta_net": ("DeltaNet", {"num_heads": 4}),
    "delta_net_gated": ("DeltaNet", dict(num_heads=2, use_gate=True, allow_neg_eigval=True, expand_k=2.0, use_short_conv=False)),
    "gated_deltanet": ("GatedDeltaNet", dict(num_heads=2, head_dim=8)),
    "gated_deltanet_grouped": ("GatedDeltaNet", dict(num_heads=2, num_v_heads=4, head_dim=8, expand_v=1.0, allow_neg_eigval=True,
                                                     output_gate_activation="sigmoid")),
    "gated_deltaproduct": ("GatedDeltaProduct", dict(num_heads=2, head_dim=8, num_householder=2, use_forget_gate=True, allow_neg_eigval=True)),
    "gated_deltaproduct_plain": ("GatedDeltaProduct", dict(num_heads=3, head_dim=6, num_householder=3, expand_v=1.5, use_short_conv=False,
                                                           use_output_gate=False, tie_word_embeddings=True)),
    "kda": ("KDA", dict(num_heads=2, head_dim=8)),
    "kda_bounded": ("KDA", dict(num_heads=2, num_v_heads=4, head_dim=6, expand_v=1.5, safe_gate=True, lower_bound=-4.0, allow_neg_eigval=True,
                                conv_size=3, tie_word_embeddings=True)),
    "kda_plain": ("KDA", dict(num_heads=4, head_dim=6, use_short_conv=False)),
    "hgrn2": ("HGRN2", dict(expand_ratio=8)),
    "rwkv6": ("RWKV6", dict(num_heads=4)),
    "rwkv6_wide": ("RWKV6", dict(num_heads=2, expand_k=1.0, expand_v=1.5, proj_low_rank_dim=5, gate_low_rank_dim=3, norm_first=False,
                                 intermediate_size=40, tie_word_embeddings=True, norm_eps=1e-3)),
    "rwkv7": ("RWKV7", dict(head_dim=8)),
    "rwkv7_wide": ("RWKV7", dict(head_dim=None, num_heads=2, decay_low_rank_dim=5, a_low_rank_dim=3, v_low_rank_dim=None, gate_low_rank_dim=None,
                                 norm_bias=False, norm_first=False, intermediate_size=40, tie_word_embeddings=True, norm_eps=1e-3)),
    "hgrn2_heads": ("HGRN2", dict(num_heads=2, expand_ratio=None, use_lower_bound=False, use_short_conv=True)),
}  # fmt: skip
NAMES = {"retnet": ["retention"], "delta_net": ["delta_net"], "gated_deltanet": ["gated_delta_net"],
         "gated_deltaproduct": ["gated_delta_product"],
         "rwkv6": ["rwkv6", "rwkv4_channel_mix"], "rwkv7": ["rwkv7", "rwkv7_channel_mix"], "rwkv": ["rwkv4", "rwkv4_channel_mix"], "recurrent_gemma": ["griffin"], "qwen3_moe": ["softmax"],
         "qwen3_next": ["gated_delta_net"], "qwen3_5": ["gated_delta_net"],
         "bamba": ["mamba2"], "granitemoehybrid": ["mamba2"], "falcon_mamba": ["mamba"], "jamba": ["mamba"],
         "lfm2": ["gated_short_conv"], "olmo_hybrid": ["gated_delta_net"], "olmo": ["sliding_window"], "falcon_h1": ["parallel_hybrid"], "nemotron_h": ["mamba2"],
         "kimi_linear": ["kda", "mla"], "minimax": ["lightning"],
         "gpt_oss": ["softmax", "sliding_window"], "llama4": ["softmax", "sliding_window"], "zamba2": ["serial_hybrid"]}  # fmt: skip


def needs(name):
    own = next((own for kind, own in NAMES.items() if name.startswith(kind)), [name.partition("_")[0]])
    return pytest.param(name, marks=pytest.mark.mechanism(*own))


@pytest.fixture(autouse=True)
def seeded():
    """Seeds what transformers draws when it makes a model: random_weights() only adds to some of it, such as A_log."""
    torch.manual_seed(3)


class Rms(nn.RMSNorm):
    """fla's, by torch's."""

    def __init__(self, hidden_size, elementwise_affine=True, eps=1e-5, dtype=None, **_):
        super().__init__(hidden_size, eps=eps, elementwise_affine=elementwise_affine)
        self.bias = None


class GatedRms(Rms):
    """fla's FusedRMSNormGated: the norm, times the gate's activation."""

    def __init__(self, hidden_size, eps=1e-5, activation="swish", **_):
        super().__init__(hidden_size, eps=eps)
        self.activation = activation

    def forward(self, x, gate):
        return super().forward(x) * (gate.sigmoid() if self.activation == "sigmoid" else F.silu(gate))


class Convolution(nn.Conv1d):
    """fla's ShortConvolution, of whole sequences."""

    def __init__(self, hidden_size, kernel_size, bias=False, activation=None):
        super().__init__(hidden_size, hidden_size, kernel_size, groups=hidden_size, bias=bias, padding=kernel_size - 1)
        self.act, self.backend = activation, "none"

    def forward(self, x, cache=None, output_final_state=False, cu_seqlens=None):
        y = super().forward(x.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2)
        return (F.silu(y) if self.act else y), None


def rotary(q, k, **_):
    """By halves, base 10,000."""
    half = q.shape[-1] // 2
    angles = torch.arange(q.shape[1])[:, None] * 10000.0 ** (-torch.arange(half) / half)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]

    def turned(x):
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    return turned(q), turned(k)


def unit(x):
    return x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()


def kda(q, k, v, g, beta, A_log, dt_bias, allow_neg_eigval, lower_bound, **_):
    """fla's KDA with its gates, by fla-core's naive function."""
    from fla.ops.kda.naive import naive_recurrent_kda

    q, k = (unit(x).repeat_interleave(v.shape[2] // q.shape[2], 2) for x in (q, k))
    gate, rate = g + dt_bias.view(g.shape[2:]), A_log.exp()[:, None]
    decay = lower_bound * (rate * gate).sigmoid() if lower_bound else -rate * F.softplus(gate)
    return naive_recurrent_kda(q, k, v, decay, beta.sigmoid() * (2 if allow_neg_eigval else 1))[0], None


def delta_product(q, k, v, g, beta, num_householder, **_):
    """fla's DeltaProduct, by fla-core's naive function."""
    from fla.ops.gated_delta_product.naive import naive_recurrent_gated_delta_product

    return naive_recurrent_gated_delta_product(unit(q), unit(k), v, g, beta, q.shape[-1] ** -0.5, num_householder=num_householder)[0], None


def spread_delta_product(q, k, v, g, beta, **_):
    """fla's DeltaProduct for short texts, whose layer has made a token of every step."""
    return delta_product(q, k, v, q.new_zeros(beta.shape) if g is None else g, beta, 1)


def by_definition(layers, monkeypatch):
    """fla's layers with fla-core's naive functions in place of kernels."""
    from fla.ops.delta_rule.naive import delta_rule_recurrence
    from fla.ops.gla.naive import naive_recurrent_gla

    def gla(q, k, v, gk=None, g=None, **_):
        return naive_recurrent_gla(q, k, v, gk if gk is not None else g)[0], None

    def retention(q, k, v, **_):
        decay = torch.log1p(-torch.exp2(-5.0 - torch.arange(q.shape[2])))
        gates = decay[:, None].expand(*q.shape[:3], q.shape[3])
        return naive_recurrent_gla(q, k, v, gates)[0], None

    def norm_linear(x, norm_weight, norm_bias, weight, bias):
        return F.linear(F.rms_norm(x, x.shape[-1:], norm_weight, 1e-5), weight, bias)

    def delta(q, k, v, beta, **_):
        q, k, v = (x.transpose(1, 2) for x in (unit(q), unit(k), v))
        return delta_rule_recurrence(q, k, v, beta.transpose(1, 2))[0].transpose(1, 2), None

    def gated_delta(q, k, v, g, beta, A_log, dt_bias, allow_neg_eigval, **_):
        q, k = (unit(x).repeat_interleave(v.shape[2] // x.shape[2], 2) for x in (q, k))
        decay = (-A_log.exp() * F.softplus(g + dt_bias)).exp()
        beta = beta.sigmoid() * (2 if allow_neg_eigval else 1)
        state, out = q.new_zeros(q.shape[0], q.shape[2], q.shape[3], v.shape[3]), []
        for t in range(q.shape[1]):
            state = state * decay[:, t, :, None, None]
            new = beta[:, t, :, None] * (v[:, t] - torch.einsum("bhkv,bhk->bhv", state, k[:, t]))
            state = state + torch.einsum("bhk,bhv->bhkv", k[:, t], new)
            out.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]) * q.shape[-1] ** -0.5)
        return torch.stack(out, 1), None

    import fla.modules.mlp
    from fla.modules.activations import ACT2FN

    monkeypatch.setitem(ACT2FN, "swish", F.silu)
    monkeypatch.setattr(fla.modules.mlp, "swiglu", lambda gate, x: F.silu(gate) * x)
    for module, functions in ((layers.gla, {"fused_recurrent_gla": gla, "chunk_gla": gla}),
                              (layers.multiscale_retention, {"chunk_retention": retention, "fused_recurrent_retention": retention}),
                              (layers.delta_net, {"fused_recurrent_delta_rule": delta, "chunk_delta_rule": delta}),
                              (layers.hgrn2, {"fused_recurrent_gla": gla, "chunk_gla": gla, "rms_norm_linear": norm_linear, "swish": F.silu}),
                              (layers.gated_deltaproduct, {"chunk_gated_delta_product": delta_product,
                                                           "fused_recurrent_gated_delta_rule": spread_delta_product}),
                              (layers.kda, {"chunk_kda": kda, "fused_recurrent_kda": kda}),
                              (layers.gated_deltanet, {"chunk_gated_delta_rule": gated_delta,
                                                       "fused_recurrent_gated_delta_rule": gated_delta})):  # fmt: skip
        for name, function in functions.items():
            monkeypatch.setattr(module, name, function)
        for name, made in (("RMSNorm", Rms), ("FusedRMSNormGated", GatedRms), ("ShortConvolution", Convolution),
                           ("RotaryEmbedding", lambda dim: rotary)):  # fmt: skip
            if hasattr(module, name):
                monkeypatch.setattr(module, name, made)


class HeadNorm(nn.GroupNorm):
    """fla's GroupNorm of [..., channels]."""

    def __init__(self, num_groups, hidden_size, elementwise_affine=True, bias=True, eps=1e-5, **_):
        super().__init__(num_groups, hidden_size, eps=eps, affine=elementwise_affine)

    def forward(self, x):
        return super().forward(x.flatten(0, -2)).view(x.shape)


def rwkv_by_definition(layers, monkeypatch):
    """As by_definition(), of RWKV-6 and RWKV-7."""
    from fla.models.rwkv6 import modeling_rwkv6
    from fla.models.rwkv7 import modeling_rwkv7
    from fla.modules.activations import ACT2FN
    from fla.ops.generalized_delta_rule.dplr.naive import dplr_recurrence
    from fla.ops.rwkv6.recurrent_naive import naive_recurrent_rwkv6
    from fla.ops.rwkv7.fused_addcmul import torch_addcmul_rwkv7
    from fla.ops.rwkv7.fused_k_update import k_update_ref
    from fla.ops.rwkv7.gate_output_correction import gate_output_correction_ref

    def shifted(x, cu_seqlens=None, cache=None, output_cache=False):
        delta = F.pad(x, (0, 0, 1, -1)) - x
        return (delta, x[:, -1]) if output_cache else delta

    def six(r, k, v, w, u, **_):
        return naive_recurrent_rwkv6(*(x.transpose(1, 2) for x in (r, k, v, w)), u, scale=1.0)[0].transpose(1, 2), None

    def seven(r, w, k, v, a, b, **_):
        o, _ = dplr_recurrence(*(x.transpose(1, 2).float() for x in (r * r.shape[-1] ** 0.5, k, v, a, b, w)))
        return o.transpose(1, 2).to(v.dtype), None

    monkeypatch.setitem(ACT2FN, "sqrelu", lambda x: F.relu(x).square())
    rwkv7 = dict(chunk_rwkv7=seven, fused_mul_recurrent_rwkv7=lambda r, w, k, v, kk, a, **_: seven(r, w, k, v, -kk, kk * a),
                 token_shift=shifted, fused_addcmul_rwkv7=torch_addcmul_rwkv7, fused_k_rwkv7=k_update_ref,
                 gate_output_correction=gate_output_correction_ref)  # fmt: skip
    rwkv6 = dict(chunk_rwkv6=six, fused_recurrent_rwkv6=six, token_shift=shifted, GroupNorm=HeadNorm)
    for module, functions in ((layers.rwkv6, rwkv6), (layers.rwkv7, rwkv7), (modeling_rwkv6, {"token_shift": shifted}),
                              (modeling_rwkv7, {"token_shift": shifted})):  # fmt: skip
        for name, function in functions.items():
            monkeypatch.setattr(module, name, function)


def fla_model(kind, options, monkeypatch):
    pytest.importorskip("fla.models")
    import fla.layers.gated_deltanet
    import fla.layers.multiscale_retention
    import fla.models

    by_definition(fla.layers, monkeypatch)
    rwkv_by_definition(fla.layers, monkeypatch)
    monkeypatch.setattr(fla.layers.gated_deltanet.GatedDeltaNet, "_use_fused_qkv_conv", lambda *_, **__: False)
    config = getattr(fla.models, kind + "Config")(**{**SIZES, "fuse_norm": False, "fuse_swiglu": False, "fuse_cross_entropy": False,
                                                     **options})  # fmt: skip
    with torch.no_grad():
        return random_weights(getattr(fla.models, kind + "ForCausalLM")(config))


def logits_of(model, tokens):
    """Returns the original's logits and the largest error allowed. If a query reads nothing, the following norm amplifies rounding:
    then the limit is a few times the original's own error against float64."""
    with torch.no_grad():
        expected = model.double()(tokens, use_cache=False).logits
        noise = (model.float()(tokens, use_cache=False).logits - expected).abs().max()
    limit = max(TOLERANCE * expected.abs().max(), 4 * noise)
    assert limit < 1e-3 * expected.abs().max()
    return expected, limit


def check_generation(ours, model, folder):
    """64 greedy tokens; sequences of unequal lengths in a batch; the model saved once more."""
    from cortado.models import LanguageModel

    torch.manual_seed(6)
    tokens = torch.randint(67, (2, 9))
    written = [tokens, ours.read(tokens, True).argmax(-1, keepdim=True)]
    while len(written) < 65:
        written.append(ours.read(written[-1], False).argmax(-1, keepdim=True))
    written = torch.cat(written, 1)
    with torch.no_grad():
        assert torch.equal(model(written[:, :-1], use_cache=False).logits[:, 8:].argmax(-1), written[:, 9:])
    opened, lengths = LanguageModel.open(folder / "ours"), (3, 21, 1, 12)
    parts = torch.randint(67, (1, sum(lengths))).split(lengths, 1)
    packed, _ = opened(torch.cat(parts, 1), cu_seqlens=torch.tensor((0, *lengths)).cumsum(0))
    for part, found in zip(parts, packed.split(lengths, 1)):
        expected, limit = logits_of(model, part)
        assert (found - expected).abs().max() < limit, part.shape
    opened.save(folder / "again")
    again = torch.classes.cortado.LanguageModel(str(folder / "again"), "float32", "")
    assert torch.equal(again.forward(parts[1]), ours.forward(parts[1]))


def check(model, folder, cortado, build, change=lambda _: None, **saving):
    """Saves the model and compares it with what is imported. Returns what the import printed."""
    model.save_pretrained(folder / "theirs", **saving)
    change(folder / "theirs")
    done = cortado("import", folder / "theirs", "--out", folder / "ours")
    assert done.returncode == 0, done.stderr
    check_imported(model, folder, build)
    return done.stdout


def check_imported(model, folder, build):
    """Logits of whole texts and of texts in pieces are the original's, and so are generated tokens. The run is FOLDER/ours."""
    torch.classes.load_library(str(build / "lib" / "libcortado.so"))
    ours = torch.classes.cortado.LanguageModel(str(folder / "ours"), "float32", "")
    torch.manual_seed(4)
    for length in (1, 7, 33):
        tokens = torch.randint(67, (2, length))
        expected, limit = logits_of(model, tokens)
        for found in (ours.forward(tokens), ours.resume(tokens, 1), ours.resume(tokens, 5)):
            assert (found - expected).abs().max() < limit, length
    check_generation(ours, model, folder)


def as_published(folder):
    """Cuts OLMo Hybrid's convolutions into those of q, k and v. transformers writes three equal parts, whatever the widths."""
    tensors = load_file(folder / "model.safetensors")
    layers = [name.removesuffix("q_conv1d.weight") for name in tensors if name.endswith("q_conv1d.weight")]
    for layer in layers:
        joint = torch.cat([tensors[f"{layer}{it}_conv1d.weight"] for it in "qkv"])
        parts = joint.split([tensors[f"{layer}{it}_proj.weight"].shape[0] for it in "qkv"])
        tensors.update({f"{layer}{it}_conv1d.weight": part.contiguous() for it, part in zip("qkv", parts)})
    if layers:
        save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize("name", [needs(it) for it in STATES])
def test_models_of_transformers(name, cortado, build, tmp_path, monkeypatch):
    check(model_of(name, monkeypatch), tmp_path, cortado, build, as_published)


@pytest.mark.parametrize("name", [needs(it) for it in ("qwen3_next_experts", "qwen3_5_moe", "granitemoehybrid_experts", "jamba_experts", "olmo_hybrid_wide")])
def test_tensors_as_they_are_in_memory(name, cortado, build, tmp_path, monkeypatch):
    """Reads experts as two three-dimensional tensors per layer, layers that name their linear attention, and OLMo Hybrid's joint convolution."""

    def change(folder):
        shapes = {name: tensor.dim() for name, tensor in load_file(folder / "model.safetensors").items() if "experts." in name and "shared" not in name}
        assert set(shapes.values()) == ({3} if name != "olmo_hybrid_wide" else set())
        text = (folder / "config.json").read_text()
        if name.startswith("qwen3"):
            assert text.count('"linear_attention"') == 3
            (folder / "config.json").write_text(text.replace('"linear_attention"', '"linear_attention_gated_delta_net"'))

    check(model_of(name, monkeypatch), tmp_path, cortado, build, change, save_original_format=False)


@pytest.mark.mechanism("parallel_hybrid")
def test_multipliers_round_no_weights_of_16_bits(cortado, build, tmp_path, monkeypatch):
    """Of Falcon-H1: they are in settings and in norms, which are kept in float32."""
    model = model_of("falcon_h1", monkeypatch)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(weight.bfloat16())

    def change(folder):
        tensors = load_file(folder / "model.safetensors")
        save_file({name: tensor.bfloat16() for name, tensor in tensors.items()}, folder / "model.safetensors")

    check(model, tmp_path, cortado, build, change)


@pytest.mark.mechanism("gated_delta_net")
def test_a_text_model_with_the_names_of_the_whole(cortado, build, tmp_path, monkeypatch):
    """Of Qwen3.5, saved from a model of images and texts."""

    def change(folder):
        tensors = load_file(folder / "model.safetensors")
        save_file({name.replace("model.", "model.language_model."): tensor for name, tensor in tensors.items()}, folder / "model.safetensors")

    check(model_of("qwen3_5_text", monkeypatch), tmp_path, cortado, build, change)


@pytest.mark.mechanism("gated_delta_net")
def test_parts_that_are_left_out_are_named(cortado, build, tmp_path, monkeypatch):
    """Vision, and the layers for multi-token prediction."""

    def change(folder):
        tensors = load_file(folder / "model.safetensors")
        tensors["mtp.fc.weight"] = torch.zeros(2, 2)
        save_file(tensors, folder / "model.safetensors")

    told = check(model_of("qwen3_5", monkeypatch), tmp_path, cortado, build, change)
    assert "\nleft out: mtp. (1 tensors), model.visual. (" in told, told


@pytest.mark.parametrize("name", [needs(it) for it in FLA])
def test_models_of_flash_linear_attention(name, cortado, build, tmp_path, monkeypatch):
    kind, options = FLA[name]
    check(fla_model(kind, options, monkeypatch), tmp_path, cortado, build)


@pytest.mark.mechanism("mamba2")
def test_other_settings_are_refused_in_one_line(cortado, tmp_path):
    options = STATES["mamba2"][1]
    model = transformers.Mamba2ForCausalLM(transformers.Mamba2Config(**{**SIZES, **options}))
    model.save_pretrained(tmp_path / "theirs")
    path = tmp_path / "theirs" / "config.json"
    config = json.loads(path.read_text())
    for changes, word in (({"hidden_act": "gelu"}, "gelu"), ({"time_step_limit": [0.1, 0.2]}, "time_step_limit"),
                          ({"num_heads": 7}, "num_heads"), ({"head_dim": 9}, "head_dim"), ({"state_size": 7}, "in_proj"),
                          ({"num_hidden_layers": 4}, "layers.3"), ({"num_hidden_layers": 2}, "layers.2"),
                          ({"model_type": "mamba3"}, "mamba3")):  # fmt: skip
        path.write_text(json.dumps({**config, **changes}))
        done = cortado("import", tmp_path / "theirs", "--out", tmp_path / "ours")
        assert done.returncode == 2 and done.stderr.count("\n") == 1 and word in done.stderr, (changes, done.stderr)
        assert not (tmp_path / "ours").exists()
    path.write_text(json.dumps({**config, "time_step_limit": [0.0, float("inf")]}))  # as Python writes it: Infinity
    done = cortado("import", tmp_path / "theirs", "--out", tmp_path / "ours")
    assert done.returncode == 0, done.stderr


REFUSED = {
    "rwkv": [("layer_norm_epsilon", 1e-3), ("attention_hidden_size", -1), ("quantization_config", {"bits": 4})],
    "recurrent_gemma": [("block_types", ["recurrent", "mamba"]), ("hidden_activation", "relu"), ("num_attention_heads", 3),
                        ("lru_width", 30), ("rope_parameters", {"rope_type": "dynamic", "factor": 2.0})],
    "qwen3_next": [("attention_bias", True), ("hidden_act", "gelu"), ("layer_types", ["full_attention"]), ("linear_num_value_heads", 5),
                   ("mlp_only_layers", [4]), ("mlp_only_layers", 1), ("decoder_sparse_step", 0), ("num_experts_per_tok", 9), ("num_experts", 5)],
    "qwen3_moe": [("use_sliding_window", True), ("hidden_act", "gelu"), ("mlp_only_layers", ["0"]), ("decoder_sparse_step", "2"),
                  ("num_experts_per_tok", 9), ("rope_parameters", {"rope_type": "dynamic", "factor": 2.0})],
    "qwen3_5_moe_text": [("attn_output_gate", False), ("norm_topk_prob", False), ("layer_types", ["mamba"] * 4)],
    "qwen3_5": [("text_config.model_type", "qwen3_text"), ("text_config.hidden_act", "gelu"), ("text_config.head_dim", "wide")],
    "bamba": [("hidden_act", "gelu"), ("time_step_limit", [0.1, 0.2]), ("attn_layer_indices", [3]), ("mamba_d_head", 9), ("mamba_n_heads", 7),
              ("mamba_n_groups", 3), ("num_key_value_heads", 3), ("rope_parameters", {"rope_type": "dynamic", "factor": 2.0})],
    "granitemoehybrid": [("position_embedding_type", "alibi"), ("normalization_function", "layernorm"), ("layer_types", ["mamba", "attention"]),
                         ("layer_types", ["mamba", "attention", "moe"]), ("residual_multiplier", 1e-9), ("num_attention_heads", 5)],
    "falcon_mamba": [("hidden_act", "gelu"), ("intermediate_size", 65), ("time_step_rank", "half")],
    "jamba": [("hidden_act", "gelu"), ("num_experts", 4), ("attn_layer_offset", 2), ("mamba_dt_rank", "half")],
    "kimi_linear": [("hidden_act", "gelu"), ("layer_types", ["linear_attention"]), ("mlp_layer_types", ["dense"] * 2), ("tie_word_embeddings", True),
                    ("mla_use_nope", False), ("moe_router_activation_func", "softmax"), ("num_key_value_heads", 2), ("topk_group", 2),
                    ("num_expert_group", 4), ("moe_layer_freq", 2)],
    "minimax": [("hidden_act", "gelu"), ("layer_types", ["linear_attention"]), ("sliding_window", 5), ("mlp_alpha_factor", 2.0), ("rotary_dim", 3), ("rotary_dim", 64),
                ("num_experts_per_tok", 9), ("rope_parameters", {"rope_type": "dynamic", "factor": 2.0})],
    "gpt_oss": [("hidden_act", "gelu"), ("layer_types", ["full_attention"]), ("layer_types", ["chunked_attention"] * 3), ("num_experts_per_tok", 9),
                ("swiglu_limit", 0.0), ("rope_parameters", {"rope_type": "dynamic", "factor": 2.0}), ("quantization_config", {"bits": 4})],
    "llama4": [("hidden_act", "gelu"), ("layer_types", ["sliding_attention"] * 5), ("no_rope_layers", [1, 0]), ("no_rope_layers", [2] * 5),
               ("moe_layers", [5]), ("floor_scale", 0), ("num_experts_per_tok", 9), ("attention_chunk_size", 0)],
    "zamba2": [("hidden_act", "silu"), ("layers_block_type", ["hybrid"]), ("layers_block_type", ["attention"] * 5), ("num_key_value_heads", 2),
               ("use_long_context", True), ("n_mamba_heads", 5), ("mamba_ngroups", 3), ("layers_block_type", None)],
    "lfm2": [("layer_types", ["conv", "full_attention"]), ("layer_types", ["conv", "sliding_attention", "conv"]), ("num_attention_heads", 5),
             ("rope_parameters", {"rope_type": "dynamic", "factor": 2.0}), ("conv_L_cache", 0), ("quantization_config", {"bits": 4})],
    "olmo_hybrid": [("hidden_act", "gelu"), ("layer_types", ["linear_attention"]), ("layer_types", ["sliding_attention"] * 3),
                    ("linear_num_key_heads", 3), ("num_attention_heads", 5), ("rope_parameters", {"rope_type": "dynamic", "factor": 2.0})],
    "falcon_h1": [("hidden_act", "gelu"), ("time_step_limit", [0.1, 0.2]), ("mamba_use_mlp", False), ("mamba_n_heads", 5), ("mamba_n_groups", 3),
                  ("mamba_d_head", 9), ("ssm_multipliers", [1.0, 2.0]), ("mlp_multipliers", [1.0, 0.0]), ("mlp_multipliers", [1.0, 1e-5]),
                  ("key_multiplier", 0.0), ("num_key_value_heads", 3), ("rope_parameters", {"rope_type": "dynamic", "factor": 2.0})],
    "nemotron_h": [("mlp_hidden_act", "silu"), ("mamba_hidden_act", "gelu"), ("layers_block_type", ["mamba", "gla"]), ("n_groups", 3),
                   ("layers_block_type", ["mlp", "mamba"]), ("layers_block_type", "M--*-"), ("layers_block_type", []), ("attention_bias", True),
                   ("sliding_window", 5), ("tie_word_embeddings", True), ("num_key_value_heads", 3)],
}  # fmt: skip


@pytest.mark.parametrize("name", [needs(it) for it in REFUSED])
def test_what_is_not_computed_is_refused(name, cortado, tmp_path, monkeypatch):
    model_of("qwen3_next_experts" if name == "qwen3_next" else name, monkeypatch).save_pretrained(tmp_path / "theirs")
    path = tmp_path / "theirs" / "config.json"
    text = path.read_text()
    for place, value in REFUSED[name]:
        config, (*outer, key) = json.loads(text), place.split(".")
        (config[outer[0]] if outer else config)[key] = value
        path.write_text(json.dumps(config))
        done = cortado("import", tmp_path / "theirs", "--out", tmp_path / "ours")
        word = {"num_attention_heads": "heads", "lru_width": "num_heads", "rope_parameters": "dynamic", "hidden_act": "gelu",
                "num_expert_group": "do not make", "num_experts": "router" if name == "jamba" else "mlp.gate", "quantization_config": "quantised"}.get(key, key)  # fmt: skip
        assert done.returncode == 2 and done.stderr.count("\n") == 1 and word in done.stderr, (key, done.stderr)
        assert not (tmp_path / "ours").exists()


@pytest.mark.mechanism("gla")
def test_what_flash_linear_attention_can_and_this_cannot(cortado, tmp_path, monkeypatch):
    model = fla_model("GLA", {}, monkeypatch)
    model.save_pretrained(tmp_path / "theirs")
    path = tmp_path / "theirs" / "config.json"
    config = json.loads(path.read_text())
    for key, value in (("attn", {"layers": [0]}), ("clamp_min", -1.0), ("use_gk", False), ("use_output_gate", False),
                       ("num_kv_heads", 2), ("feature_map", "elu"), ("expand_k", 0.3), ("elementwise_affine", False)):  # fmt: skip
        path.write_text(json.dumps({**config, key: value}))
        done = cortado("import", tmp_path / "theirs", "--out", tmp_path / "ours")
        assert done.returncode == 2 and done.stderr.count("\n") == 1 and key in done.stderr, (key, done.stderr)


@pytest.mark.mechanism("rwkv7", "rwkv7_channel_mix")
def test_an_early_rwkv7_has_its_shares_in_one_tensor(cortado, build, tmp_path, monkeypatch):
    def change(folder):
        tensors = load_file(folder / "model.safetensors")
        for layer in range(3):
            names = [f"model.layers.{layer}.attn.x_{which}" for which in "rwkvag"]
            tensors[f"model.layers.{layer}.attn.x_x"] = torch.cat([tensors.pop(name).view(1, -1) for name in names])
        save_file(tensors, folder / "model.safetensors")

    check(fla_model("RWKV7", {"head_dim": 8}, monkeypatch), tmp_path, cortado, build, change)


@pytest.mark.mechanism("rwkv6", "rwkv7", "rwkv4_channel_mix", "rwkv7_channel_mix")
@pytest.mark.parametrize("kind, options, refused", [
    ("RWKV7", {"head_dim": 8}, [("attn", {"layers": [0]}), ("value_dim", 64), ("value_dim", [32, 64, 32]), ("hidden_act", "relu"), ("head_dim", 7)]),
    ("RWKV6", {"num_heads": 4}, [("attn", {"layers": [0]}), ("hidden_act", "relu"), ("num_heads", 5), ("expand_k", 0.3)]),
])  # fmt: skip
def test_what_rwkv_of_flash_linear_attention_can_and_this_cannot(kind, options, refused, cortado, tmp_path, monkeypatch):
    fla_model(kind, options, monkeypatch).save_pretrained(tmp_path / "theirs")
    path = tmp_path / "theirs" / "config.json"
    config = json.loads(path.read_text())
    for key, value in refused:
        path.write_text(json.dumps({**config, key: value}))
        done = cortado("import", tmp_path / "theirs", "--out", tmp_path / "ours")
        assert done.returncode == 2 and done.stderr.count("\n") == 1 and key in done.stderr, (key, done.stderr)
