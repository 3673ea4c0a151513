"""Luna, Linformer and Perceiver against their equations (Latte's appendix, eq. 22-29) in numpy."""

import numpy as np
import pytest
import torch


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def heads_of(x, heads):
    """[..., n, D] -> [heads, ..., n, D/heads]."""
    return np.stack(np.split(x, heads, -1))


def attend(q, k, v, heads):
    """softmax(q k' / sqrt d) v of each head; q [.., n, D], k, v [.., m, D]."""
    q, k, v = heads_of(q, heads), heads_of(k, heads), heads_of(v, heads)
    p = softmax(q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1]))
    return np.concatenate(list(p @ v), -1)


def project(p, name, x):
    return x @ p[f"{name}.weight"].T


def luna_bidirectional(heads):
    def run(x, p):
        latents = np.broadcast_to(project(p, "p", p["latents"]), (x.shape[0], *p["latents"].shape))
        y = attend(latents, project(p, "k", x), project(p, "v", x), heads)
        return project(p, "o", attend(project(p, "q", x), project(p, "k_latent", y), project(p, "v_latent", y), heads))

    return run


def luna_causal(heads):
    def run(x, p):
        latents = heads_of(project(p, "p", p["latents"]), heads)  # [H,L,d]
        q, k, v = (heads_of(project(p, n, x), heads) for n in "qkv")  # [H,B,T,d]
        root = np.sqrt(q.shape[-1])
        theta = np.einsum("hld,hbtd->hblt", latents, k) / root
        elu = np.where(theta > 0, theta, np.expm1(np.minimum(theta, 0)))
        a = np.log1p(np.exp(elu + 1))
        out = np.zeros_like(v)
        for t in range(x.shape[1]):
            past = a[..., : t + 1]
            context = past @ k[:, :, : t + 1] / (t + 1)  # [H,B,L,d]
            b = softmax(np.einsum("hbd,hbld->hbl", q[:, :, t], context) / root)
            out[:, :, t] = np.einsum("hbl,hbld->hbd", b, past @ v[:, :, : t + 1]) / (t + 1)
        return project(p, "o", np.concatenate(list(out), -1))

    return run


def linformer(heads):
    def run(x, p):
        tokens = x.shape[1]
        k = p["e"][:, :tokens] @ project(p, "k", x)
        v = p["f"][:, :tokens] @ project(p, "v", x)
        return project(p, "o", attend(project(p, "q", x), k, v, heads))

    return run


def rms(x, weight):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * weight


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def perceiver(heads, blocks):
    def run(x, p):
        latents = np.broadcast_to(p["latents"], (x.shape[0], *p["latents"].shape))
        z = project(p, "mix", attend(latents, project(p, "k", x), project(p, "v", x), heads))
        for i in range(blocks):
            y = rms(z, p[f"blocks{i}.norm.weight"])
            y = attend(*(project(p, f"blocks{i}.{n}", y) for n in "qkv"), heads)
            z = z + project(p, f"blocks{i}.o", y)
            y = gelu_tanh(project(p, f"blocks{i}.feed.up", rms(z, p[f"blocks{i}.feed_norm.weight"])))
            z = z + project(p, f"blocks{i}.feed.down", y)
        return project(p, "o", attend(project(p, "q", x), project(p, "k_latent", z), project(p, "v_latent", z), heads))

    return run


CASES = {
    "luna": (luna_bidirectional(3), False, {"latents": 5}),
    "luna causal": (luna_causal(3), True, {"latents": 5}),
    "linformer": (linformer(3), False, {"latents": 4, "length": 40}),
    "perceiver": (perceiver(3, 2), False, {"latents": 4, "blocks": 2}),
    "perceiver without blocks": (perceiver(3, 0), False, {"latents": 1, "blocks": 0}),
}


@pytest.fixture(params=CASES)
def case(request, mixer):
    torch.manual_seed(1)
    equations, causal, settings = CASES[request.param]
    return mixer(request.param.split()[0], 12, 3, causal=causal, **settings), equations, causal


def arrays(ours):
    return {name: value.detach().numpy() for name, value in ours.parameters.items()}


@pytest.mark.parametrize("size", [0.01, 1.0, 10.0])
def test_outputs(case, close, size):
    ours, equations, _ = case
    for tokens in (1, 2, 40):
        x = torch.randn(2, tokens, 12, dtype=torch.float64) * size
        close(ours(x), torch.tensor(equations(x.numpy(), arrays(ours))), 1e-9, f"T = {tokens}")


def test_packed_sequences_are_separate(case, close):
    ours, equations, _ = case
    x = torch.randn(1, 30, 12, dtype=torch.float64)
    bounds = [0, 11, 11, 12, 30]
    parts = [equations(x[:, a:b].numpy(), arrays(ours)) for a, b in zip(bounds, bounds[1:]) if b > a]
    close(ours(x, torch.tensor(bounds)), torch.tensor(np.concatenate(parts, 1)), 1e-10)


def test_gradients_are_finite_differences_of_the_equations(case):
    ours, equations, _ = case
    rng = np.random.default_rng(2)
    x = torch.tensor(rng.standard_normal((2, 6, 12)), requires_grad=True)
    weight = rng.standard_normal((2, 6, 12))
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


def test_luna_goes_on_from_its_state(mixer, close):
    torch.manual_seed(3)
    ours = mixer("luna", 12, 3, latents=4)
    x = torch.randn(2, 40, 12, dtype=torch.float64)
    parts = torch.cat([ours.resume(x[:, :13]), ours.resume(x[:, 13:14]), ours.resume(x[:, 14:])], 1)
    close(parts, torch.tensor(luna_causal(3)(x.numpy(), arrays(ours))), 1e-10)


def test_linformer_refuses_what_is_longer_than_its_length(mixer):
    ours = mixer("linformer", 12, 3, causal=False, latents=4, length=8)
    with pytest.raises(RuntimeError, match=r"\[linformer\] a sequence of 9 tokens is longer"):
        ours(torch.randn(1, 9, 12, dtype=torch.float64))


def test_encoders_have_no_causal_form(mixer):
    for name in ("linformer", "perceiver"):
        with pytest.raises(RuntimeError, match="no causal form"):
            mixer(name, 12, 3)
