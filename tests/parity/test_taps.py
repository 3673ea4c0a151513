"""Short convolutions behind q, k and v (`taps`) of softmax attention, windows and Blurry Window Attention, against PyTorch's
conv1d and scaled_dot_product_attention and the slots written out: outputs, all gradients, and going on from a state."""

import math

import pytest
import torch
from torch.nn import functional as F

DIM, HEADS, TAPS = 24, 3, 4


def convolved(x, weight):
    """x [B,T,C], weight [C,taps] -> y_t = sum_i weight[:, taps-1-i] x_{t-i}."""
    taps = weight.shape[1]
    return F.conv1d(F.pad(x.mT, (taps - 1, 0)), weight.unsqueeze(1), groups=weight.shape[0]).mT


def projected(p, x):
    return [convolved(F.linear(x, p[f"{n}.weight"]), p[f"{n}.conv.weight"]).unflatten(-1, (HEADS, -1)) for n in "qkv"]


def attention(p, x, window=None):
    q, k, v = (y.transpose(1, 2) for y in projected(p, x))
    t = torch.arange(x.shape[1])
    age = t[:, None] - t
    seen = (age >= 0) & (age < (window or x.shape[1]))
    o = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
    return F.linear(o.transpose(1, 2).flatten(2), p["o.weight"])


def blurry(p, x, slots, period):
    """BLA without decay, token by token (eq. 9, 14, 16, 17)."""
    q, k, v = projected(p, x)
    modes, n = torch.arange(1, (slots - 1) // 2 + 1, dtype=x.dtype), torch.arange(slots, dtype=x.dtype)
    keys = values = x.new_zeros(x.shape[0], HEADS, slots, DIM // HEADS)
    out = []
    for t in range(x.shape[1]):
        angle = 2 * math.pi / period * modes[:, None] * (t - n * period / slots)
        w = ((1 + 2 * angle.cos().sum(0)) / slots)[:, None]
        keys, values = keys + w * k[:, t, :, None], values + w * v[:, t, :, None]
        scores = torch.einsum("bhnd,bhd->bhn", keys, q[:, t]) / math.sqrt(DIM // HEADS)
        weights = scores.masked_fill(n * period / slots > t, -math.inf).softmax(-1)
        out.append(torch.einsum("bhn,bhnd->bhd", weights, values).flatten(1))
    return F.linear(torch.stack(out, 1), p["o.weight"])


CASES = {
    "softmax": ({}, attention),
    "sliding_window": ({"window": 6}, lambda p, x: attention(p, x, 6)),
    "blurry_window": ({"slots": 7, "period": 14, "decay": False}, lambda p, x: blurry(p, x, 7, 14)),
}


def made(mixer, name, **more):
    torch.manual_seed(0)
    return mixer(name, DIM, HEADS, taps=TAPS, **CASES[name][0], **more)


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.mechanism(name)) for name in CASES])
def test_taps_are_a_depthwise_convolution(mixer, close, same_gradients, name):
    ours = made(mixer, name)
    x = torch.randn(2, 40, DIM, dtype=torch.float64, requires_grad=True)
    theirs = {key: value.detach().clone().requires_grad_() for key, value in ours.parameters.items()}
    y, right = ours(x), CASES[name][1](theirs, x)
    close(y, right, 1e-10)
    leaves = [ours.parameters[key] for key in theirs]
    same_gradients(y, right, [x, *leaves], [x, *theirs.values()], 1e-8)


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.mechanism(name)) for name in CASES])
def test_the_state_has_the_convolutions_tails(mixer, close, name):
    ours = made(mixer, name)
    x = torch.randn(2, 40, DIM, dtype=torch.float64)
    with torch.no_grad():
        cuts = (0, 1, 3, 20, 21, 40)  # shorter than the tail, and longer
        close(torch.cat([ours.resume(x[:, a:b]) for a, b in zip(cuts, cuts[1:])], 1), ours(x), 1e-10)
        raw = F.linear(x, ours.parameters["k.weight"])[:, 1 - TAPS :]
    close(ours.state()["k_conv"].double(), raw, 1e-6)


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.mechanism(name)) for name in CASES])
def test_taps_may_start_as_the_identity(mixer, close, name):
    torch.manual_seed(0)
    plain = mixer(name, DIM, HEADS, **CASES[name][0])
    ours = made(mixer, name, taps_start="identity")
    convolutions = {key: value for key, value in ours.parameters.items() if ".conv." in key}
    assert len(convolutions) == 3
    ours.fill({**plain.parameters, **convolutions})
    x = torch.randn(2, 40, DIM, dtype=torch.float64)
    close(ours(x), plain(x), 1e-12)
