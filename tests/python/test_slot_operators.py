"""abc, gated_slot, blurry_window and lolcats against loops in numpy, with gradients, opcheck and torch.compile."""

import numpy as np
import pytest
import torch

ops = torch.ops.cortado


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


def randn(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator, dtype=dtype).requires_grad_()


def per_head(function, *tensors):
    """function of the [T, .] slices of every batch row and head."""
    arrays = [x.detach().numpy() for x in tensors]
    batch, _, heads, _ = arrays[0].shape
    out = [[function(*(x[b, :, h] for x in arrays)) for h in range(heads)] for b in range(batch)]
    return np.stack([np.stack(row, 1) for row in out])


def compare(got, right):
    np.testing.assert_allclose(got.detach().numpy(), right, rtol=1e-9, atol=1e-10)


def test_abc_equals_numpy():
    q, k, v, s = randn(2, 40, 2, 4), randn(2, 40, 2, 4, seed=1), randn(2, 40, 2, 3, seed=2), randn(2, 40, 2, 5, seed=3)

    def one_head(q, k, v, s):
        out = []
        for t in range(len(q)):
            weights = np.stack([softmax(s[: t + 1, m]) for m in range(s.shape[1])])  # [M, t+1]
            out.append(softmax(weights @ k[: t + 1] @ q[t] / 2) @ (weights @ v[: t + 1]))
        return np.stack(out)

    compare(ops.abc(q, k, v, s)[0], per_head(one_head, q, k, v, s))


def test_gated_slot_equals_numpy():
    q, k, v, s = randn(2, 40, 2, 4), randn(2, 40, 2, 4, seed=1), randn(2, 40, 2, 3, seed=2), randn(2, 40, 2, 5, seed=3)
    g = -randn(2, 40, 2, 5, seed=4).abs()

    def one_head(q, k, v, s, g):
        keys, values, out = np.zeros((5, 4)), np.zeros((5, 3)), []
        for t in range(len(q)):
            keys = np.exp(g[t])[:, None] * keys + np.outer(s[t], k[t])
            values = np.exp(g[t])[:, None] * values + np.outer(s[t], v[t])
            out.append(softmax(keys @ q[t] / 2) @ values)
        return np.stack(out)

    compare(ops.gated_slot(q, k, v, s, g)[0], per_head(one_head, q, k, v, s, g))


@pytest.mark.parametrize("decay", [True, False])
@pytest.mark.parametrize("slots, period", [(1, 1), (5, 5), (5, 10), (7, 17)])
def test_blurry_window_equals_numpy(slots, period, decay):
    q, k, v = randn(2, 40, 2, 4), randn(2, 40, 2, 4, seed=1), randn(2, 40, 2, 3, seed=2)
    delays = np.arange(slots) * period / slots

    def one_head(q, k, v):
        keys, values, out = np.zeros((slots, 4)), np.zeros((slots, 3)), []
        for t in range(len(q)):
            w = sum(np.exp(2j * np.pi * m * (t - delays) / period) for m in range(-(slots // 2), slots // 2 + 1)).real / slots
            keep = (1 - w if decay else np.ones(slots))[:, None]
            keys, values = keep * keys + np.outer(w, k[t]), keep * values + np.outer(w, v[t])
            there = delays <= t + 1e-9
            out.append(softmax(keys[there] @ q[t] / 2) @ values[there])
        return np.stack(out)

    compare(ops.blurry_window(q, k, v, slots=slots, period=period, decay=decay)[0], per_head(one_head, q, k, v))


@pytest.mark.parametrize("heads", [(6, 2, 3, 6), (2, 2, 3, 6), (3, 3, 1, 1), (6, 6, 2, 3), (12, 2, 6, 3)])
@pytest.mark.parametrize("name", ["abc", "gated_slot"])
def test_the_most_heads_of_any_input_are_the_states(name, heads):
    (hq, hk, hv, hs), most = heads, max(heads[1:])
    q, k, v, s = randn(1, 20, hq, 4), randn(1, 20, hk, 4, seed=1), randn(1, 20, hv, 3, seed=2), randn(1, 20, hs, 5, seed=3)
    rest = [s] if name == "abc" else [s, -randn(1, 20, 1, 5, seed=4).abs()]
    out = max(hq, most)
    wide = [x.repeat_interleave(out // x.shape[2], 2) for x in (q, k, v, *rest)]
    o, keys, *_ = getattr(ops, name)(q, k, v, *rest)
    assert keys.shape == (1, most, 5, 4)
    torch.testing.assert_close(o, getattr(ops, name)(*wide)[0])


def test_heads_that_do_not_divide_the_most_are_refused():
    q, k, v, s = (torch.zeros(1, 4, h, 3) for h in (6, 4, 3, 6))
    with pytest.raises(RuntimeError, match=r"heads of k \(4\) must divide the largest head count, 6"):
        ops.abc(q, k, v, s)


def test_a_distribution_over_slots_of_ones_gives_ones():
    """GSA's weights: slots that hold ones keep them, and the softmax over the slots sums to one."""
    q, k, s = randn(2, 90, 2, 4), randn(2, 90, 2, 4, seed=1), torch.sigmoid(randn(2, 90, 2, 5, seed=3) * 4)
    ones = torch.ones(2, 2, 5, 3, dtype=torch.float64)
    o, _, values = ops.gated_slot(
        q, k, torch.ones(2, 90, 2, 3), s, torch.log1p(-s), key_state=torch.zeros(2, 2, 5, 4), value_state=ones
    )
    torch.testing.assert_close(o, torch.ones_like(o))
    torch.testing.assert_close(values, ones)


@pytest.mark.parametrize("position, message", [([-1, 3], "at least 0, got -1"), ([1.0, 2.0], "must be integers")])
def test_blurry_window_refuses_a_position_that_is_none(position, message):
    x = torch.zeros(2, 4, 1, 3)
    with pytest.raises(RuntimeError, match=message):
        ops.blurry_window(x, x, x, slots=3, period=5, position=torch.tensor(position))


def test_blurry_window_refuses_a_position_elsewhere():
    x = torch.ones(1, 2, 1, 4)
    with pytest.raises(RuntimeError, match="expected position on cpu"):
        ops.blurry_window(x, x, x, slots=3, period=5, position=torch.zeros(1, dtype=torch.int64, device="meta"))


def test_blurry_window_compiles_whole_with_a_position():
    q, k, v = randn(2, 6, 2, 4), randn(2, 6, 2, 4, seed=1), randn(2, 6, 2, 3, seed=2)
    seen = torch.tensor([0, 7])

    def run(q, k, v):
        return ops.blurry_window(q, k, v, slots=3, period=5, position=seen)[0]

    torch.testing.assert_close(torch.compile(run, fullgraph=True, backend="aot_eager")(q, k, v), run(q, k, v))


def test_blurry_window_resumes_rows_at_their_own_positions():
    q, k, v = randn(2, 30, 2, 4), randn(2, 30, 2, 4, seed=1), randn(2, 30, 2, 3, seed=2)
    options = {"slots": 5, "period": 13}
    whole = ops.blurry_window(q, k, v, **options)[0]
    cuts = (11, 20)
    firsts = [ops.blurry_window(*(x[b : b + 1, :c] for x in (q, k, v)), **options) for b, c in enumerate(cuts)]
    rest = [torch.cat([x[b : b + 1, c : c + 10] for b, c in enumerate(cuts)]) for x in (q, k, v)]
    keys, values = (torch.cat([first[i] for first in firsts]) for i in (1, 2))
    o, *_ = ops.blurry_window(*rest, **options, key_state=keys, value_state=values, position=torch.tensor(cuts))
    for b, c in enumerate(cuts):
        torch.testing.assert_close(o[b], whole[b, c : c + 10])


@pytest.mark.mechanism("lolcats")
@pytest.mark.parametrize("mixture", ["lolcats", "gated", "plain"])
@pytest.mark.parametrize("layout", ["sliding", "terrace"])
def test_lolcats_equals_numpy(layout, mixture):
    q, k, v = randn(2, 40, 2, 4), randn(2, 40, 2, 4, seed=1), randn(2, 40, 2, 3, seed=2)
    phi_q, phi_k = randn(2, 40, 2, 6, seed=3).abs(), randn(2, 40, 2, 6, seed=4).abs()
    factor, window = randn(2, seed=5), 8
    gates = iter([1 / (1 + np.exp(-factor[h].item())) for _ in range(2) for h in range(2)])

    def one_head(q, k, v, phi_q, phi_k):
        out, gate = [], next(gates)
        for t in range(len(q)):
            first = max(0, t - window + 1 if layout == "sliding" else (t // window - 1) * window)
            scores = k[first : t + 1] @ q[t] / 2
            near, far = np.exp(scores), phi_k[:first] @ phi_q[t]
            if mixture == "lolcats":
                near = gate * np.exp(scores - scores.max())
            if mixture == "gated":
                near, far = gate * near, (1 - gate) * far
            out.append((far @ v[:first] + near @ v[first : t + 1]) / (far.sum() + near.sum()))
        return np.stack(out)

    o = ops.lolcats(q, k, v, phi_q, phi_k, factor, window=window, layout=layout, mixture=mixture)
    compare(o, per_head(one_head, q, k, v, phi_q, phi_k))


def small(name):
    """(operator's function of its tensors alone, those tensors), small."""
    q, k, v = randn(1, 6, 2, 3), randn(1, 6, 2, 3, seed=1), randn(1, 6, 2, 2, seed=2)
    s = randn(1, 6, 2, 3, seed=3)
    if name == "abc":
        return lambda *x: ops.abc(*x)[0], (q, k, v, s)
    if name == "gated_slot":
        return lambda q, k, v, s: ops.gated_slot(q, k, v, s, -s.abs())[0], (q, k, v, s)
    if name.startswith("blurry"):
        return lambda *x: ops.blurry_window(*x, slots=3, period=5, decay="decay" in name)[0], (q, k, v)
    layout, mixture = name.split()[1:]
    factor = randn(2, seed=4)
    return (
        lambda q, k, v, a, b, f: ops.lolcats(q, k, v, a.exp(), b.exp(), f, window=2, layout=layout, mixture=mixture),
        (q, k, v, s, randn(1, 6, 2, 3, seed=5), factor),
    )


LOLCATS = ("lolcats sliding lolcats", "lolcats terrace gated", "lolcats sliding plain")
NAMES = ["abc", "gated_slot", "blurry", "blurry decay", *(pytest.param(name, marks=pytest.mark.mechanism("lolcats")) for name in LOLCATS)]


@pytest.mark.parametrize("name", NAMES)
def test_gradients(name):
    function, tensors = small(name)
    assert torch.autograd.gradcheck(function, tensors)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)  # float32 has kernels
@pytest.mark.parametrize("name", NAMES)
def test_compiles_whole(name, dtype):
    function, tensors = small(name)
    tensors = [x.detach().to(dtype).requires_grad_() for x in tensors]
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*tensors), function(*tensors))


@pytest.mark.parametrize("name", ["abc", "gated_slot", "blurry_window", pytest.param("lolcats", marks=pytest.mark.mechanism("lolcats"))])
def test_opcheck(name):
    q, v, s = randn(1, 20, 2, 4, dtype=torch.float32), randn(1, 20, 2, 3, dtype=torch.float32), randn(1, 20, 2, 5, dtype=torch.float32)
    positive = s.detach().exp().requires_grad_()
    arguments, options = {
        "abc": ((q, q, v, s), {}),
        "gated_slot": ((q, q, v, s, (-s.detach().abs()).requires_grad_()), {}),
        "blurry_window": ((q, q, v), {"slots": 5, "period": 7}),
        "lolcats": ((q, q, v, positive, positive, randn(2, dtype=torch.float32)), {"window": 4}),
    }[name]
    torch.library.opcheck(getattr(ops, name), arguments, options)


def test_autocast_keeps_the_types_it_is_given():
    q, v, s = randn(1, 40, 2, 4, dtype=torch.float32), randn(1, 40, 2, 3, dtype=torch.float32), randn(1, 40, 2, 5, dtype=torch.float32)
    with torch.autocast(torch.get_default_device().type, dtype=torch.bfloat16):
        wide = ops.abc(q, q, v, s)[0]
        short, keys, *_ = ops.abc(q.bfloat16(), q.bfloat16(), v.bfloat16(), s.bfloat16())
    assert wide.dtype == keys.dtype == torch.float32 and short.dtype == torch.bfloat16
    torch.testing.assert_close(wide, ops.abc(q, q, v, s)[0])


def test_scores_by_latents_have_shapes_and_no_numbers_without_a_gpu():
    make = lambda *sizes: torch.empty(sizes, dtype=torch.bfloat16, device="meta")
    q, s = make(2, 7, 3, 16), make(2, 7, 3, 8)
    found = torch.ops.cortado._latte_scores(q, s, q)
    assert [tuple(x.shape) for x in found] == [(2, 7, 3, 8), (2, 3, 8, 16), (2, 3, 8), (2, 3, 8)]
    assert all(x.dtype == torch.float32 for x in found)
    with pytest.raises(RuntimeError, match="no kernels for these tensors"):
        torch.ops.cortado._latte_scores(*(torch.zeros_like(x, device="cpu") for x in (q, s, q)))


def test_what_belongs_together_says_so():
    x = torch.zeros(1, 4, 1, 3)
    state = torch.zeros(1, 1, 3, 3)
    with pytest.raises(RuntimeError, match="belong together"):
        ops.abc(x, x, x, x, key_state=state, value_state=state)
    with pytest.raises(RuntimeError, match="belong together"):
        ops.gated_slot(x, x, x, x, x, key_state=state)
    with pytest.raises(RuntimeError, match="slots must be odd"):
        ops.blurry_window(x, x, x, slots=4, period=8)


@pytest.mark.mechanism("lolcats")
def test_lolcats_needs_a_window():
    x = torch.zeros(1, 4, 1, 3)
    with pytest.raises(RuntimeError, match="window must be at least 1"):
        ops.lolcats(x, x, x, x, x, torch.zeros(1), window=0)
