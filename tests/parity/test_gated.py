"""gla, retention and lightning against fla-core's naive recurrences and transformers' MiniMax."""

import pytest
import torch
import torch.nn.functional as F
from fla_naive import naive
from transformers.models.minimax.configuration_minimax import MiniMaxConfig
from transformers.models.minimax.modeling_minimax import MiniMaxLightningAttention

naive_recurrent_gla = naive("gla.naive").naive_recurrent_gla
naive_retention = naive("retention.naive").naive_retention
naive_recurrent_simple_gla = naive("simple_gla.naive").naive_recurrent_simple_gla
TOLERANCE = 2e-5  # fla computes in float32
SHAPES = [(1, 1, 1, 4, 4), (2, 37, 3, 8, 5), (1, 130, 2, 16, 32)]  # B, T, H, K, V


def operands(shape):
    b, t, h, k, v = shape
    torch.manual_seed(1)
    return [torch.randn(b, t, h, n, requires_grad=True) for n in (k, k, v)]


@pytest.mark.parametrize("strength", [0.01, 0.1, 1.0, 10.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_gate_per_channel(ops, close, same_gradients, shape, strength):
    q, k, v = operands(shape)
    b, _, h, dk, dv = shape
    g = (F.logsigmoid(torch.randn(q.shape)) * strength).requires_grad_()
    start = torch.randn(b, h, dk, dv, requires_grad=True)
    ours, our_state = ops.gated_scan(q, k, v, g, initial_state=start)
    theirs, their_state = naive_recurrent_gla(q, k, v, g, start, output_final_state=True)
    close(ours, theirs, TOLERANCE)
    close(our_state, their_state, TOLERANCE)
    leaves = [q, k, v, g, start]
    ours, theirs = (torch.cat([a.flatten(), s.flatten()]) for a, s in ((ours, our_state), (theirs, their_state)))
    same_gradients(ours, theirs, leaves, leaves, TOLERANCE * 5)


@pytest.mark.parametrize("strength", [0.01, 0.1, 1.0, 10.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_gate_per_head(ops, close, same_gradients, shape, strength):
    q, k, v = operands(shape)
    b, t, h, dk, dv = shape
    g = (F.logsigmoid(torch.randn(b, t, h)) * strength).requires_grad_()
    start = torch.randn(b, h, dk, dv, requires_grad=True)
    ours, our_state = ops.gated_scan(q, k, v, g, initial_state=start)
    theirs, their_state = naive_recurrent_simple_gla(q, k, v, g, initial_state=start)
    close(ours, theirs, TOLERANCE)
    close(our_state, their_state, TOLERANCE)
    same_gradients(ours, theirs, [q, k, v, g, start], [q, k, v, g, start], TOLERANCE * 5)


@pytest.mark.parametrize("shape", SHAPES)
def test_retention(ops, close, same_gradients, shape):
    q, k, v = operands(shape)
    g = torch.log1p(-torch.exp2(-5 - torch.arange(shape[2], dtype=torch.float32)))
    ours, _ = ops.gated_scan(q, k, v, g)
    theirs = naive_retention(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)
    close(ours, theirs, TOLERANCE)
    same_gradients(ours, theirs, [q, k, v], [q, k, v], TOLERANCE * 5)


def rms(x, weight, eps):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def conv_silu(x, weight):
    """Depthwise and causal, with PyTorch's own convolution."""
    return F.silu(F.conv1d(F.pad(x.transpose(1, 2), (weight.shape[1] - 1, 0)), weight.unsqueeze(1), groups=x.shape[2]).transpose(1, 2))


def rope(x, theta):
    half = x.shape[3] // 2
    angle = torch.arange(x.shape[1])[:, None] * theta ** (-torch.arange(half) / half)
    turned = torch.view_as_complex(torch.stack([x[..., :half], x[..., half:]], -1)) * torch.polar(torch.ones_like(angle), angle)[:, None]
    return torch.cat([turned.real, turned.imag], -1)


@pytest.mark.parametrize("taps", [None, 4])
@pytest.mark.parametrize("length", [3, 70])
def test_gla_layer(mixer, close, same_gradients, length, taps):
    """The layer's equations around fla's recurrence (fla's own layer needs Triton)."""
    torch.manual_seed(2)
    ours = mixer("gla", 32, 4, float64=False, taps=taps)
    p = ours.parameters
    x = torch.randn(2, length, 32, requires_grad=True)
    q, k, v = (F.linear(x, p[f"{n}.weight"]) for n in "qkv")
    if taps:
        q, k, v = (conv_silu(y, p[f"conv_{n}.weight"]) for n, y in zip("qkv", (q, k, v)))
    q, k, v = (y.unflatten(2, (4, -1)) for y in (q, k, v))
    g = F.logsigmoid(F.linear(F.linear(x, p["decay_down.weight"]), p["decay_up.weight"], p["decay_up.bias"])) / 16
    o, _ = naive_recurrent_gla(q, k, v, g.unflatten(2, (4, -1)))
    gate = F.silu(F.linear(x, p["g.weight"]))
    theirs = F.linear(rms(o, p["norm.weight"], 1e-5).flatten(2) * gate, p["o.weight"])
    close(ours(x), theirs, TOLERANCE)
    leaves = [x, *p.values()]
    same_gradients(ours(x), theirs, leaves, leaves, TOLERANCE * 5)


def test_retention_layer(mixer, close, same_gradients):
    torch.manual_seed(3)
    ours = mixer("retention", 32, 4, float64=False, rope_theta=500.0)
    p = ours.parameters
    x = torch.randn(2, 90, 32, requires_grad=True)
    q, k, v = (F.linear(x, p[f"{n}.weight"]).unflatten(2, (4, -1)) for n in "qkv")
    o = naive_retention(*(y.transpose(1, 2) for y in (rope(q, 500.0), rope(k, 500.0), v))).transpose(1, 2)
    gate = F.silu(F.linear(x, p["g.weight"]))
    theirs = F.linear(rms(o, p["norm.weight"], 1e-5).flatten(2) * gate, p["o.weight"])
    close(ours(x), theirs, TOLERANCE)
    leaves = [x, *p.values()]
    same_gradients(ours(x), theirs, leaves, leaves, TOLERANCE * 5)
    close(torch.cat([ours.resume(x[:, :33]), ours.resume(x[:, 33:34]), ours.resume(x[:, 34:])], 1), theirs, TOLERANCE)


def test_lightning_with_fla_slopes(mixer, close):
    torch.manual_seed(4)
    ours = mixer("lightning", 32, 4, layer=2, layers=5, float64=False, slopes="fla")
    p = ours.parameters
    x = torch.randn(2, 90, 32)
    q, k, v = (F.linear(x, p[f"{n}.weight"]).unflatten(2, (4, -1)) for n in "qkv")
    slopes = -(8 / 4) * (1 - 2 / 5) * torch.arange(4)
    o, _ = naive_recurrent_simple_gla(F.silu(q), F.silu(k), v, slopes.expand(2, 90, 4))
    gate = F.linear(x, p["g.weight"]).sigmoid()
    close(ours(x), F.linear(rms(o.flatten(2), p["norm.weight"], 1e-6) * gate, p["o.weight"]), TOLERANCE)


@pytest.mark.parametrize("length", [1, 20, 64, 150])
@pytest.mark.parametrize(("layer", "layers"), [(0, 1), (0, 4), (3, 4)])
def test_lightning_of_minimax(mixer, close, same_gradients, length, layer, layers):
    torch.manual_seed(5)
    heads, size = 4, 8
    config = MiniMaxConfig(
        hidden_size=24,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=size,
        num_hidden_layers=layers,
        block_size=32,
        hidden_act="silu",
        layer_types=["linear_attention"] * layers,
    )
    theirs = MiniMaxLightningAttention(config, layer)
    ours = mixer("lightning", 24, heads, layer=layer, layers=layers, key_dim=heads * size, value_dim=heads * size, float64=False)
    qkv = theirs.qkv_proj.weight.detach().reshape(heads, 3, size, 24)  # their rows go by head
    ours.fill(
        {
            "q.weight": qkv[:, 0],
            "k.weight": qkv[:, 1],
            "v.weight": qkv[:, 2],
            "g.weight": theirs.output_gate.weight,
            "norm.weight": theirs.norm.weight,
            "o.weight": theirs.out_proj.weight,
        }
    )
    x = torch.randn(2, length, 24, requires_grad=True)
    expected = theirs(x, None, None)[0]
    close(ours(x), expected, TOLERANCE)
    p = ours.parameters
    same = [("g.weight", theirs.output_gate.weight), ("norm.weight", theirs.norm.weight), ("o.weight", theirs.out_proj.weight)]
    same_gradients(ours(x), expected, [x] + [p[n] for n, _ in same], [x] + [w for _, w in same], TOLERANCE * 5)
    cut = length // 2
    if cut:
        close(torch.cat([ours.resume(x[:, :cut]), ours.resume(x[:, cut:])], 1), expected, TOLERANCE)
