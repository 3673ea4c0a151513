"""window_attention against a formula in numpy, against PyTorch's own attention, and as a citizen of PyTorch."""

import numpy as np
import pytest
import torch

window_attention = torch.ops.cortado.window_attention


def randn(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(1000 * seed + sum(shape))  # equal keys would have equal scores
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()


def qkv(batch=2, queries=9, keys=9, heads=2, key_heads=2, size=3, value_size=2, dtype=torch.float64):
    return (
        randn(batch, queries, heads, size, seed=1, dtype=dtype),
        randn(batch, keys, key_heads, size, seed=2, dtype=dtype),
        randn(batch, keys, key_heads, value_size, seed=3, dtype=dtype),
    )


def extra(rows=2, count=3, heads=2, size=3, value_size=2):
    mask = torch.tensor(np.arange(rows * heads * count).reshape(rows, heads, count) % 3 != 1)
    return {
        "extra_k": randn(rows, count, heads, size, seed=4),
        "extra_v": randn(rows, count, heads, value_size, seed=5),
        "extra_mask": mask,
    }


def formula(q, k, v, window=None, causal=True, scale=None, softcap=None, extra_k=None, extra_v=None, extra_mask=None):
    """Computes query by query, with explicit sums over the keys that the query sees."""
    q, k, v = (x.detach().double().numpy() for x in (q, k, v))
    batch, queries, heads, size = q.shape
    keys, group = k.shape[1], heads // k.shape[2]
    scale = size**-0.5 if scale is None else scale
    o = np.zeros((batch, queries, heads, v.shape[3]))
    lse, row_max = (np.full((batch, queries, heads), -np.inf) for _ in range(2))
    for b, i, h in np.ndindex(batch, queries, heads):
        place = i + keys - queries
        seen = [j for j in range(keys) if (j <= place or not causal) and (window is None or abs(place - j) < window)]
        pairs = [(k[b, j, h // group], v[b, j, h // group]) for j in seen]
        if extra_k is not None:
            shown = range(extra_k.shape[1]) if extra_mask is None else np.flatnonzero(extra_mask[b, h].numpy())
            more_k, more_v = (x[b, :, h // group].detach().numpy() for x in (extra_k, extra_v))
            pairs += [(more_k[e], more_v[e]) for e in shown]
        if not pairs:
            continue
        scores = np.array([q[b, i, h] @ key * scale for key, _ in pairs])
        if softcap is not None:
            scores = softcap * np.tanh(scores / softcap)
        row_max[b, i, h] = scores.max()
        weights = np.exp(scores - scores.max())
        lse[b, i, h] = scores.max() + np.log(weights.sum())
        o[b, i, h] = sum(w * value for w, (_, value) in zip(weights, pairs)) / weights.sum()
    return o, lse, row_max


OPTIONS = [
    {},
    {"window": 1},
    {"window": 4},
    {"causal": False},
    {"window": 3, "causal": False},
    {"scale": 0.3, "softcap": 0.8, "window": 5},
]
SHAPES = [
    {},
    {"queries": 1},
    {"queries": 4},
    {"queries": 12},
    {"queries": 80, "keys": 80},
    {"heads": 4},
    {"heads": 4, "key_heads": 1},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_numpy(shape, options):
    inputs = qkv(**shape)
    for got, want in zip(window_attention(*inputs, **options), formula(*inputs, **options)):
        np.testing.assert_allclose(got.detach().numpy(), want, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("options", OPTIONS[1:], ids=str)
def test_extra_keys_equal_numpy(options):
    inputs, options = qkv(), options | extra()
    for got, want in zip(window_attention(*inputs, **options), formula(*inputs, **options)):
        np.testing.assert_allclose(got.detach().numpy(), want, rtol=1e-10, atol=1e-12)


def test_packed_equals_separate():
    q, k, v = qkv(batch=1, queries=20, keys=30)
    bounds, key_bounds = [0, 4, 4, 20], [0, 9, 14, 30]
    packed = window_attention(
        q, k, v, window=5, cu_seqlens=torch.tensor(bounds, dtype=torch.int32), cu_seqlens_k=torch.tensor(key_bounds)
    )
    for n in range(3):
        own, theirs = slice(bounds[n], bounds[n + 1]), slice(key_bounds[n], key_bounds[n + 1])
        for got, want in zip(packed, formula(q[:, own], k[:, theirs], v[:, theirs], window=5)):
            np.testing.assert_allclose(got[:, own].detach().numpy(), want, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_gradients_are_finite_differences(options):
    inputs = qkv(batch=1, queries=5, keys=6, heads=4)
    assert torch.autograd.gradcheck(lambda *x: window_attention(*x, **options), inputs)


def test_gradients_of_the_extra_set():
    more = extra(rows=1)

    def call(q, k, v, extra_k, extra_v):
        return window_attention(
            q, k, v, window=2, softcap=2.0, extra_k=extra_k, extra_v=extra_v, extra_mask=more["extra_mask"]
        )

    assert torch.autograd.gradcheck(call, (*qkv(batch=1, queries=4, keys=5), more["extra_k"], more["extra_v"]))


def test_packed_gradients():
    bounds = torch.tensor([0, 3, 3, 7])
    inputs = qkv(batch=1, queries=7, keys=7)
    assert torch.autograd.gradcheck(lambda *x: window_attention(*x, window=2, cu_seqlens=bounds), inputs)


@pytest.mark.parametrize("causal", [True, False])
def test_equals_scaled_dot_product_attention(causal):
    inputs = qkv(queries=70, keys=70, heads=4, size=8, value_size=8)
    grad = randn(2, 70, 4, 8, seed=9).detach()
    o = window_attention(*inputs, causal=causal)[0]
    expected = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in inputs), is_causal=causal, enable_gqa=True
    ).transpose(1, 2)
    torch.testing.assert_close(o, expected)
    for got, want in zip(torch.autograd.grad(o, inputs, grad), torch.autograd.grad(expected, inputs, grad)):
        torch.testing.assert_close(got, want)


def test_parts_merge_by_their_lse():
    q, k, v = qkv(queries=6, keys=20)
    whole = window_attention(q, k, v, causal=False)
    parts = [window_attention(q, k[:, a:b], v[:, a:b], causal=False) for a, b in ((0, 13), (13, 20))]
    weights = torch.softmax(torch.stack([lse for _, lse, _ in parts]), 0)
    torch.testing.assert_close(sum(w[..., None] * o for w, (o, _, _) in zip(weights, parts)), whole[0])


def test_queries_that_see_nothing():
    inputs = qkv(queries=8, keys=3)
    o, lse, row_max = window_attention(*inputs)
    assert (o[:, :5] == 0).all() and (lse[:, :5] == -torch.inf).all() and (row_max[:, :5] == -torch.inf).all()
    for grad in torch.autograd.grad((o, lse, row_max), inputs, [torch.ones_like(x) for x in (o, lse, row_max)]):
        assert torch.isfinite(grad).all()


@pytest.mark.parametrize("operator", ["window_attention", "_window_attention"])
def test_opcheck(operator):
    op = getattr(torch.ops.cortado, operator)
    torch.library.opcheck(op, qkv(queries=70, keys=80, heads=4, dtype=torch.float32), {"window": 20})
    torch.library.opcheck(op, qkv(), {"causal": False, "softcap": 2.0} | extra())
    torch.library.opcheck(op, qkv(batch=1), {"cu_seqlens": torch.tensor([0, 4, 9])})


def test_opcheck_of_the_backward():
    with torch.no_grad():
        q, k, v = qkv(heads=4, dtype=torch.float32)
        o, lse, row_max, denominator = torch.ops.cortado._window_attention(q, k, v, window=3)
    op = torch.ops.cortado._window_attention_backward
    arguments = [x.detach() for x in (torch.ones_like(o), lse, lse, o, row_max, denominator, q, k, v)]
    torch.library.opcheck(op, arguments, {"window": 3})


def test_compiles_whole():
    inputs = qkv(queries=33, keys=33, dtype=torch.float32)

    def loss(q, k, v):
        o, lse, row_max = window_attention(q, k, v, window=9)
        return (o * o).sum() + lse.sum() + row_max.sum()

    expected = torch.autograd.grad(loss(*inputs), inputs)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager", dynamic=True)
    for got, want in zip(torch.autograd.grad(compiled(*inputs), inputs), expected):
        torch.testing.assert_close(got, want)


def test_autocast_mixes_types():
    q, k, v = qkv(queries=40, keys=40, dtype=torch.float32)
    with torch.autocast(torch.get_default_device().type, dtype=torch.bfloat16):
        o, lse, row_max = window_attention(q, k.bfloat16(), v.bfloat16())
    assert o.dtype == torch.bfloat16 and lse.dtype == row_max.dtype == torch.float32
    want = formula(q, k.bfloat16(), v.bfloat16())
    np.testing.assert_allclose(lse.detach().numpy(), want[1], rtol=1e-5, atol=1e-5)  # float32 inside, not bfloat16
    np.testing.assert_allclose(o.detach().float().numpy(), want[0], rtol=2**-8, atol=1e-5)
    d_q, d_k = torch.autograd.grad(o.float().sum(), (q, k))
    assert d_q.dtype == d_k.dtype == torch.float32


def test_twice_differentiated_is_an_error():
    q, k, v = qkv()
    (first,) = torch.autograd.grad(window_attention(q, k, v)[0].pow(2).sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="twice"):
        first.sum().backward()


@pytest.mark.parametrize(
    "change, message",
    [
        ({"k": (2, 9, 2, 4)}, r"expected k of shape \[2, \*, \*, 3\], got \[2, 9, 2, 4\]"),
        ({"v": (2, 8, 2, 2)}, r"expected v of shape \[2, 9, \*, \*\], got \[2, 8, 2, 2\]"),
        ({"k": (2, 9, 3, 3)}, "heads of"),
        ({"q": (2, 9, 3, 3)}, "q's heads"),
        ({"window": 0}, "window must be at least 1"),
        ({"extra_k": torch.zeros(2, 3, 2, 3)}, "given together"),
        ({"extra_mask": torch.ones(2, 3, dtype=torch.bool)}, "extra_mask needs"),
        ({"cu_seqlens": torch.tensor([0, 9])}, "batch of 1"),
    ],
    ids=str,
)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_what_does_not_fit(change, message, device):
    shapes = {"q": (2, 9, 2, 3), "k": (2, 9, 2, 3), "v": (2, 9, 2, 2)}
    inputs = [torch.zeros(change.get(name, shape), device=device) for name, shape in shapes.items()]
    options = {name: value for name, value in change.items() if name not in shapes}
    with pytest.raises(RuntimeError, match=message):
        window_attention(*inputs, **options)
