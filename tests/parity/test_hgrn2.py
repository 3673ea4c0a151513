"""hgrn2 against fla-core: its GLA recurrence with k = 1 - f inside the whole mixer, and HGRN, which equals it with one
channel per head."""

import pytest
import torch
import torch.nn.functional as F
from fla_naive import naive

naive_recurrent_gla = naive("gla.naive").naive_recurrent_gla
naive_recurrent_hgrn = naive("hgrn.naive").naive_recurrent_hgrn
TOLERANCE = 2e-5  # fla computes in float32
DIM = 32


def rms(x, weight):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * weight


def conv(x, weight):
    """Depthwise and causal, with PyTorch's own convolution."""
    return F.conv1d(F.pad(x.transpose(1, 2), (weight.shape[1] - 1, 0)), weight.unsqueeze(1), groups=x.shape[2]).transpose(1, 2)


def projections(p, x):
    """q, log f of no lower bound, i."""
    q, f, i = (F.linear(x, p[f"{n}.weight"]) for n in "qfi")
    if "q.conv.weight" in p:
        q, f, i = (conv(y, p[f"{n}.conv.weight"]) for n, y in zip("qfi", (q, f, i)))
    return F.silu(q), F.logsigmoid(f), i


def fla_layer(p, x, heads, bound):
    """The equations of fla's HGRN2Attention around its recurrence (the layer itself needs Triton)."""
    q, g, i = projections(p, x)
    if bound:
        g = (bound + (1 - bound) * g.exp()).log()
    q, k, i, g = (y.unflatten(2, (heads, -1)) for y in (q, 1 - g.exp(), i, g))
    o, state = naive_recurrent_gla(q, k, i, g, output_final_state=True)
    return F.linear(rms(o.flatten(2), p["norm.weight"]), p["o.weight"]), state


@pytest.mark.parametrize("settings", [{}, {"lower_bound": 0.3}, {"lower_bound": 0.9, "key_dim": 64, "taps": 4}])
@pytest.mark.parametrize("strength", [0.01, 0.1, 1.0, 10.0])
@pytest.mark.parametrize("length", [1, 3, 130])
def test_whole_mixer(mixer, close, same_gradients, length, strength, settings):
    torch.manual_seed(1)
    ours = mixer("hgrn2", DIM, 4, float64=False, **settings)
    p = ours.parameters
    with torch.no_grad():
        p["f.weight"].mul_(strength)
    x = torch.randn(2, length, DIM, requires_grad=True)
    theirs, state = fla_layer(p, x, 4, settings.get("lower_bound", 0.0))
    close(ours(x), theirs, TOLERANCE)
    leaves = [x, *p.values()]
    same_gradients(ours(x), theirs, leaves, leaves, TOLERANCE * 10)
    cut = length // 3
    parts = [part for part in (x[:, :cut], x[:, cut : cut + 1], x[:, cut + 1 :]) if part.shape[1]]
    close(torch.cat([ours.resume(part) for part in parts], 1), theirs, TOLERANCE)
    close(ours.state()["scan_state"], state, TOLERANCE)


@pytest.mark.parametrize("length", [1, 90])
def test_one_channel_a_head_is_hgrn(mixer, close, same_gradients, length):
    torch.manual_seed(2)
    ours = mixer("hgrn2", DIM, DIM, float64=False)
    p = ours.parameters
    x = torch.randn(2, length, DIM, requires_grad=True)
    q, g, i = projections(p, x)
    h, _ = naive_recurrent_hgrn((1 - g.exp()) * i, g)
    theirs = F.linear(rms(q * h, p["norm.weight"]), p["o.weight"])
    close(ours(x), theirs, TOLERANCE)
    leaves = [x, *p.values()]
    same_gradients(ours(x), theirs, leaves, leaves, TOLERANCE * 10)
