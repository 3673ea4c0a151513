"""H3, S5, Mega and Longformer against their equations in numpy (and transformers' Longformer): outputs, gradients, resuming."""

import numpy as np
import pytest
import torch
from transformers import LongformerConfig
from transformers.models.longformer.modeling_longformer import LongformerSelfAttention


def arrays(ours):
    return {name: value.detach().numpy() for name, value in ours.parameters.items()}


def stir(ours, size=0.1):
    """Moves parameters away from their initial values, some of which are zero."""
    with torch.no_grad():
        for value in ours.parameters.values():
            value.add_(torch.randn_like(value) * size)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def check(ours, equations, close, dim, lengths=(1, 2, 33), causal=True):
    """Compares outputs at several lengths, gradients by finite differences of the equations, and continuation from a
    state."""
    rng = np.random.default_rng(0)
    for tokens in lengths:
        x = torch.tensor(rng.standard_normal((2, tokens, dim)))
        close(ours(x), torch.tensor(equations(x.numpy(), arrays(ours))), 1e-10, f"T = {tokens}")
    x = torch.tensor(rng.standard_normal((1, 7, dim)), requires_grad=True)
    weight = rng.standard_normal((1, 7, dim))
    leaves = {"x": x, **ours.parameters}
    gradients = torch.autograd.grad((ours(x) * torch.tensor(weight)).sum(), list(leaves.values()))
    for (name, leaf), gradient in zip(leaves.items(), gradients):
        along = rng.standard_normal(tuple(leaf.shape))
        values = []
        for step in (1e-5, -1e-5):
            moved = {n: v.detach().numpy() + (step * along if n == name else 0) for n, v in leaves.items()}
            values.append((equations(moved.pop("x"), moved) * weight).sum())
        numeric = (values[0] - values[1]) / 2e-5
        assert abs(numeric - (gradient.numpy() * along).sum()) < 1e-6 * max(1, abs(numeric)), name
    if not causal:
        return
    x = torch.tensor(rng.standard_normal((2, 40, dim)))
    parts = torch.cat([ours.resume(x[:, :13]), ours.resume(x[:, 13:14]), ours.resume(x[:, 14:])], 1)
    close(parts, torch.tensor(equations(x.numpy(), arrays(ours))), 1e-10, "resumed")


def h3(x, p):
    """Token by token; both systems as state-space systems with their own states."""
    q, k, v = (x @ p[f"{n}.weight"].T for n in "qkv")
    taps = p["shift.weight"].shape[1]
    lam = -np.exp(p["log_decay"]) + 1j * p["frequency"]
    step = np.exp(p["log_step"])[:, None]
    a = np.exp(lam * step)
    b = (a - 1) / lam
    c = p["c"][..., 0] + 1j * p["c"][..., 1]
    batch, tokens, dim = x.shape
    shift = np.zeros((batch, dim, taps))  # the last keys, the newest first
    state = np.zeros((batch, *lam.shape), complex)
    outputs = []
    for t in range(tokens):
        shift = np.concatenate([k[:, t, :, None], shift[:, :, :-1]], 2)
        u = (shift * p["shift.weight"][:, ::-1]).sum(2) * v[:, t]
        state = a * state + b * u[..., None]
        y = (2 * (c * state).real).sum(2) + p["skip"] * u
        outputs.append(q[:, t] * y)
    return np.stack(outputs, 1) @ p["o.weight"].T


@pytest.mark.parametrize("states, taps", [(1, 1), (4, 3), (2, 40)])
def test_h3(mixer, close, states, taps):
    torch.manual_seed(1)
    ours = mixer("h3", 6, 2, states=states, taps=taps)
    stir(ours)
    check(ours, h3, close, 6)


def gelu(x):
    from math import erf

    return x * 0.5 * (1 + np.vectorize(erf)(x / np.sqrt(2)))


def s5(x, p):
    """The full system with both halves of every conjugate pair: 2N complex states, C h real by itself."""
    lam = -np.exp(p["log_decay"]) + 1j * p["frequency"]
    lam, step = np.concatenate([lam, lam.conj()]), np.exp(np.tile(p["log_step"], 2))
    a = np.exp(lam * step)
    b = p["b"][..., 0] + 1j * p["b"][..., 1]
    b = ((a - 1) / lam)[:, None] * np.concatenate([b, b.conj()])

    def run(x, c):
        c = c[..., 0] + 1j * c[..., 1]
        c = np.concatenate([c, c.conj()], 1)
        h, outputs = np.zeros((x.shape[0], len(lam)), complex), []
        for t in range(x.shape[1]):
            h = a * h + x[:, t] @ b.T
            outputs.append((h @ c.T).real)
        return np.stack(outputs, 1)

    y = run(x, p["c"]) + p["skip"] * x
    if "c_back" in p:
        y = y + run(x[:, ::-1], p["c_back"])[:, ::-1]
    g = gelu(y)
    return g * sigmoid(g @ p["gate.weight"].T)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("states", [1, 5])
def test_s5(mixer, close, states, causal):
    torch.manual_seed(2)
    ours = mixer("s5", 6, 2, states=states, causal=causal)
    stir(ours)
    check(ours, s5, close, 6, causal=causal)


def test_s5_starts_from_hippo(mixer):
    """The eigenvalues of the normal part of HiPPO-LegS; and B, C seen in its eigenvectors give a real system."""
    torch.manual_seed(3)
    states, dim = 8, 6
    p = arrays(mixer("s5", dim, 2, states=states))
    n = np.arange(2 * states)
    root = np.sqrt(2 * n + 1)
    legs = -np.tril(np.outer(root, root), -1) - np.diag(n + 1.0)
    normal = legs + 0.5 * np.outer(root, root)  # LegS plus the rank-one term p p' with p = sqrt(n + 1/2)
    values = np.linalg.eigvals(normal)
    expected = np.sort(values.imag[values.imag > 0])
    assert np.allclose(values.real, -0.5)
    assert np.allclose(np.sort(p["frequency"]), expected, rtol=1e-5)
    assert np.allclose(-np.exp(p["log_decay"]), -0.5)
    assert np.all((p["log_step"] >= np.log(0.001)) & (p["log_step"] <= np.log(0.1)))


def rotate(v, position, theta=10000.0):
    half = len(v) // 2
    angle = position * theta ** (-2 * np.arange(half) / len(v))
    return np.concatenate([v[:half] * np.cos(angle) - v[half:] * np.sin(angle),
                           v[half:] * np.cos(angle) + v[:half] * np.sin(angle)])


def mega_of(chunk, causal):
    def average(x, p, name):
        alpha, delta = sigmoid(p[f"{name}.alpha"]), sigmoid(p[f"{name}.delta"])
        h, outputs = np.zeros((x.shape[0], *alpha.shape)), []
        for t in range(x.shape[1]):
            h = alpha * p[f"{name}.beta"] * x[:, t, :, None] + (1 - alpha * delta) * h
            outputs.append((p[f"{name}.eta"] * h).sum(2))
        return np.stack(outputs, 1)

    def linear(x, p, name):
        return x @ p[f"{name}.weight"].T + p.get(f"{name}.bias", 0)

    def mega(x, p):
        ema = average(x, p, "average")
        if not causal:
            ema = ema + average(x[:, ::-1], p, "average_back")[:, ::-1]
        z = silu(linear(ema, p, "z"))
        q, k = (p["kappa"][i] * z + p["mu"][i] for i in (0, 1))
        v = silu(linear(x, p, "v"))
        attended = np.zeros_like(v)
        for t in range(x.shape[1]):
            start = t // chunk * chunk
            end = t + 1 if causal else min(start + chunk, x.shape[1])
            scores = (q[:, t, None] * k[:, start:end]).sum(2) / np.sqrt(q.shape[2])
            if "bias_alpha" in p:
                scores = scores + [rotate(p["bias_alpha"], t) @ rotate(p["bias_beta"], s) for s in range(start, end)]
            attended[:, t] = (softmax(scores)[..., None] * v[:, start:end]).sum(1)
        reset, update = silu(linear(ema, p, "reset")), sigmoid(linear(ema, p, "update"))
        candidate = silu(linear(ema, p, "h") + (reset * attended) @ p["u.weight"].T)
        # The block's output with its residual connection, less that connection.
        return update * candidate + (1 - update) * x - x

    return mega


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_mega(mixer, close, bias, causal):
    torch.manual_seed(4)
    ours = mixer("mega", 6, 2, causal=causal, shared=4, values=8, average=3, chunk=8, bias=bias)
    stir(ours, 0.5)
    check(ours, mega_of(8, causal), close, 6, causal=causal)


@pytest.mark.parametrize("globals_", [1, 3])
@pytest.mark.parametrize("tokens", [8, 32])
def test_longformer_is_transformers(mixer, close, same_gradients, tokens, globals_):
    torch.manual_seed(5)
    dim, heads, around = 12, 3, 4  # `around`: the package's window, half of it on either side
    config = LongformerConfig(
        hidden_size=dim, num_attention_heads=heads, attention_window=[around], attention_probs_dropout_prob=0.0
    )
    theirs = LongformerSelfAttention(config, 0).double()
    ours = mixer("longformer", dim, heads, causal=False, window=around // 2 + 1, globals=globals_, bias=True)
    names = {"q": "query", "k": "key", "v": "value"}
    names.update({f"{n}_global": f"{names[n]}_global" for n in "qkv"})
    values = {f"{n}.{part}": getattr(getattr(theirs, names[n]), part) for n in names for part in ("weight", "bias")}
    with torch.no_grad():
        for value in values.values():
            value.normal_(0, 0.5)
    identity = {"o.weight": torch.eye(dim, dtype=torch.float64), "o.bias": torch.zeros(dim)}
    ours.fill({**values, **identity})
    x = torch.randn(2, tokens, dim, dtype=torch.float64, requires_grad=True)
    is_global = torch.zeros(2, tokens).bool()
    is_global[:, :globals_] = True
    mask = torch.where(is_global, 10000.0, 0.0).double()  # as the package's encoder gives it: > 0 global, < 0 hidden
    (expected,) = theirs(
        x, attention_mask=mask, is_index_masked=torch.zeros(2, tokens).bool(), is_index_global_attn=is_global,
        is_global_attn=True,
    )[:1]
    got = ours(x)
    close(got, expected, 1e-6)  # the package's softmax is in float32
    moving = [n for n in values if n not in ("k.bias", "k_global.bias")]  # a shift of all keys changes no softmax
    leaves = [x] + [ours.parameters[n] for n in moving], [x] + [values[n] for n in moving]
    same_gradients(got, expected, *leaves, 1e-4)


def longformer_of(heads, window, globals_):
    def causal(x, p):
        q, k, v = (x @ p[f"{n}.weight"].T for n in "qkv")
        size = q.shape[2] // heads
        outputs = np.zeros_like(q)
        for t in range(x.shape[1]):
            seen = [s for s in range(t + 1) if t - s < window or s < globals_]
            for h in range(heads):
                part = slice(h * size, (h + 1) * size)
                scores = (q[:, t, None, part] * k[:, seen, part]).sum(2) / np.sqrt(size)
                outputs[:, t, part] = (softmax(scores)[..., None] * v[:, seen, part]).sum(1)
        return outputs @ p["o.weight"].T

    return causal


@pytest.mark.parametrize("window, globals_", [(1, 2), (5, 3), (4, 0)])
def test_longformer_causal(mixer, close, window, globals_):
    torch.manual_seed(6)
    ours = mixer("longformer", 6, 3, window=window, globals=globals_)
    check(ours, longformer_of(3, window, globals_), close, 6)


@pytest.mark.parametrize("causal", [True, False])
def test_exact_chunked_is_softmax(mixer, close, same_gradients, causal):
    torch.manual_seed(7)
    exact = mixer("softmax", 12, 3, causal=causal, softcap=3.0)
    chunked = mixer("exact_chunked", 12, 3, causal=causal, softcap=3.0, chunk=9)
    chunked.fill(exact.parameters)
    x = torch.randn(2, 50, 12, dtype=torch.float64, requires_grad=True)
    close(chunked(x), exact(x), 1e-12)
    leaves = [x, *chunked.parameters.values()], [x, *exact.parameters.values()]
    same_gradients(chunked(x), exact(x), *leaves, 1e-10)
