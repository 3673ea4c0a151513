"""latte, macchiato and normalized_linear against their definitions in numpy, with gradients, opcheck and torch.compile."""

import numpy as np
import pytest
import torch

ops = torch.ops.cortado


def softmax(x, axis):
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def latte_weights(p, theta, t, causal):
    """p(s|t) over s for one head: sum_l p(l|t) softmax_s(theta_sl)."""
    seen = t + 1 if causal else len(theta)
    return softmax(theta[:seen], 0) @ p[t]


def numpy_latte(p, theta, v, causal):
    """One head: p, theta [T, L], v [T, V]."""
    rows = [latte_weights(p, theta, t, causal) for t in range(len(v))]
    return np.stack([row @ v[: len(row)] for row in rows])


def numpy_window(q, k, v, window, causal):
    out = []
    for t in range(len(q)):
        low, high = max(0, t - window + 1), t + 1 if causal else min(len(k), t + window)
        out.append(softmax(k[low:high] @ q[t] / np.sqrt(q.shape[1]), 0) @ v[low:high])
    return np.stack(out)


def per_head(function, *arrays):
    """Applies function to every [T, .] slice of [B, T, H, .] arrays."""
    batch, tokens, heads, _ = arrays[0].shape
    out = [[function(*(x[b, :, h] for x in arrays)) for h in range(heads)] for b in range(batch)]
    return np.stack([np.stack(row, 1) for row in out])


def randn(*shape, scale=1.0, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return (torch.randn(*shape, generator=generator, dtype=dtype) * scale).requires_grad_()


def arrays(*tensors):
    return [x.detach().numpy() for x in tensors]


@pytest.mark.parametrize("causal", [True, False])
def test_latte_equals_numpy(causal):
    q, theta, v = randn(2, 70, 2, 5), randn(2, 70, 2, 5, scale=3, seed=1), randn(2, 70, 2, 4, seed=2)
    o, *_ = ops.latte(q, theta, v, causal=causal)
    expected = per_head(lambda q, t, v: numpy_latte(softmax(q, 1), t, v, causal), *arrays(q, theta, v))
    np.testing.assert_allclose(o.detach().numpy(), expected, rtol=1e-9, atol=1e-10)


def test_latte_gradients():
    q, theta, v = randn(1, 8, 2, 3), randn(1, 8, 2, 3, seed=1), randn(1, 8, 2, 2, seed=2)
    assert torch.autograd.gradcheck(lambda *x: ops.latte(*x)[0], (q, theta, v))
    assert torch.autograd.gradcheck(lambda *x: ops.latte(*x, causal=False)[0], (q, theta, v))
    bounds = torch.tensor([0, 3, 3, 8])
    assert torch.autograd.gradcheck(lambda *x: ops.latte(*x, cu_seqlens=bounds)[0], (q, theta, v))
    assert torch.autograd.gradcheck(lambda *x: ops.latte(*x, causal=False, cu_seqlens=bounds)[0], (q, theta, v))


@pytest.mark.parametrize("causal", [True, False])
def test_macchiato_equals_numpy(causal):
    logits, theta, v = randn(1, 50, 2, 6), randn(1, 50, 2, 5, seed=1), randn(1, 50, 2, 4, seed=2)
    wq, wk = randn(1, 50, 2, 6, seed=3), randn(1, 50, 2, 6, seed=4)

    def one_head(logits, theta, v, wq, wk):
        p = softmax(logits, 1)
        return p[:, :1] * numpy_window(wq, wk, v, 7, causal) + numpy_latte(p[:, 1:], theta, v, causal)

    o, *_ = ops.macchiato(logits, theta, v, wq, wk, window=7, causal=causal)
    np.testing.assert_allclose(o.detach().numpy(), per_head(one_head, *arrays(logits, theta, v, wq, wk)), rtol=1e-9, atol=1e-10)


def test_macchiato_gradients():
    tensors = (randn(1, 6, 1, 3), randn(1, 6, 1, 2, seed=1), randn(1, 6, 1, 2, seed=2), randn(1, 6, 1, 2, seed=3), randn(1, 6, 1, 2, seed=4))
    assert torch.autograd.gradcheck(lambda *x: ops.macchiato(*x, window=3)[0], tensors)


@pytest.mark.parametrize("causal", [True, False])
def test_normalized_linear_equals_numpy(causal):
    q, k = (torch.nn.functional.elu(randn(2, 40, 2, 3, seed=s)) + 1 for s in (0, 1))
    v = randn(2, 40, 2, 4, seed=2)

    def one_head(q, k, v):
        weights = q @ k.T
        weights = np.tril(weights) if causal else weights
        return weights @ v / (weights.sum(1, keepdims=True) + 1e-6)

    o, *_ = ops.normalized_linear(q, k, v, causal=causal, eps=1e-6)
    np.testing.assert_allclose(o.detach().numpy(), per_head(one_head, *arrays(q, k, v)), rtol=1e-9, atol=1e-10)


def test_opcheck():
    q, theta, v = (randn(1, 20, 2, n, dtype=torch.float32) for n in (5, 5, 4))
    logits, w = randn(1, 20, 2, 6, dtype=torch.float32), randn(1, 20, 2, 4, dtype=torch.float32)
    for args, options in [(ops.latte, (q, theta, v)), (ops.normalized_linear, (q.exp(), theta.exp(), v))]:
        torch.library.opcheck(args, options)
    torch.library.opcheck(ops.macchiato, (logits, theta, v, w, w), {"window": 5})


def test_macchiato_compiles_whole_with_a_past():
    logits, theta, v, w = (randn(1, 20, 2, n, dtype=torch.float32) for n in (6, 5, 4, 4))
    past, length = torch.randn(1, 4, 2, 4), torch.tensor([3])

    def run(logits, theta, v, w):
        return ops.macchiato(logits, theta, v, w, w, window=5, past_k=past, past_v=past, past_length=length)[0]

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(logits, theta, v, w), run(logits, theta, v, w))


def packed_with_past(dtype=torch.float64):
    """(operator's function of its tensors, those tensors, the function of each sequence alone): three sequences, one empty."""
    tensors = tuple(randn(1, 9, 2, n, seed=s, dtype=dtype) for s, n in enumerate((4, 3, 2, 5, 5)))
    past = (randn(3, 4, 2, 5, seed=7, dtype=dtype), randn(3, 4, 2, 2, seed=8, dtype=dtype))
    bounds, lengths = torch.tensor([0, 5, 5, 9]), torch.tensor([3, 2, 0])

    def packed(*x):
        return ops.macchiato(*x[:5], window=4, past_k=x[5], past_v=x[6], past_length=lengths, cu_seqlens=bounds)[0]

    def separate(*x):
        parts = []
        for n, (start, end) in enumerate([(0, 5), (5, 5), (5, 9)]):
            row = [y[:, start:end] for y in x[:5]]
            before = [y[n : n + 1, 4 - lengths[n] :] for y in x[5:]]
            parts.append(ops.macchiato(*row, window=4, past_k=before[0], past_v=before[1])[0])
        return torch.cat(parts, 1)

    return packed, tensors + past, separate


def test_macchiato_packed_with_a_past_equals_each_sequence_alone():
    packed, tensors, separate = packed_with_past()
    torch.testing.assert_close(packed(*tensors), separate(*tensors))
    assert torch.autograd.gradcheck(packed, tensors)


def test_macchiato_compiles_whole_packed_with_a_past():
    packed, tensors, _ = packed_with_past()
    compiled = torch.compile(packed, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*tensors), packed(*tensors))
    gradients = [torch.autograd.grad(f(*tensors).square().sum(), tensors) for f in (compiled, packed)]
    torch.testing.assert_close(*gradients)


def test_macchiato_packed_with_a_past_has_a_meta_form():
    tensors = packed_with_past(torch.float32)[1]
    bounds, lengths = torch.tensor([0, 5, 5, 9]), torch.tensor([3, 2, 0])
    options = {"window": 4, "past_k": tensors[5], "past_v": tensors[6], "past_length": lengths, "cu_seqlens": bounds}
    torch.library.opcheck(ops.macchiato, tensors[:5], options)
    meta = {name: x.to("meta") if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    assert ops.macchiato(*(x.to("meta") for x in tensors[:5]), **meta)[0].shape == (1, 9, 2, 2)


@pytest.mark.parametrize("bounds", [None, torch.tensor([0, 5])])
def test_macchiato_does_not_round_its_past(bounds):
    logits, theta, v, w = (randn(1, 5, 2, n, dtype=torch.bfloat16) for n in (4, 3, 2, 5))
    past_k, past_v = randn(1, 3, 2, 5, seed=7), randn(1, 3, 2, 2, seed=8)
    run = {"window": 4, "past_k": past_k, "past_v": past_v, "cu_seqlens": bounds}
    short, state, *_ = ops.macchiato(logits, theta, v, w, w, **run)
    exact = ops.macchiato(logits.double(), theta.double(), v.double(), w.double(), w.double(), **run)[0]
    assert short.dtype == torch.bfloat16 and state.dtype == torch.float64
    assert torch.equal(short, exact.bfloat16())  # computed in the past's float64, rounded once


@pytest.mark.parametrize("length, message", [(4, "at most 3, got 4"), (-1, "at least 0, got -1"), (1.0, "must be integers")])
def test_macchiato_refuses_a_past_length_that_is_none(length, message):
    x, past = torch.zeros(1, 5, 1, 2), torch.zeros(1, 3, 1, 2)
    with pytest.raises(RuntimeError, match=message):
        ops.macchiato(torch.zeros(1, 5, 1, 3), x, x, x, x, window=4, past_k=past, past_v=past, past_length=torch.tensor([length]))


@pytest.mark.parametrize("bounds", [None, torch.tensor([0, 2, 6])])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", ["latte", "normalized_linear"])
def test_differentiating_twice_is_an_error(name, causal, bounds):
    tensors = [randn(1, 6, 2, n, seed=s).exp() for s, n in enumerate((3, 3, 4))]
    o = getattr(ops, name)(*tensors, causal=causal, cu_seqlens=bounds)[0]
    for first in torch.autograd.grad(o.square().sum(), tensors, create_graph=True):
        for other in tensors:
            with pytest.raises(RuntimeError, match="differentiating twice"):
                torch.autograd.grad(first.sum(), other, retain_graph=True, allow_unused=True)


def test_autocast_keeps_the_types_it_is_given():
    q, theta, v = (randn(1, 40, 2, 4, dtype=torch.float32) for _ in range(3))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        o, state, *_ = ops.latte(q.bfloat16(), theta.bfloat16(), v.bfloat16())
        wide, *_ = ops.latte(q, theta, v)
    assert o.dtype == torch.bfloat16 and state.dtype == torch.float32 and wide.dtype == torch.float32
    torch.testing.assert_close(o.float(), wide, atol=0.05, rtol=0.05)
    torch.testing.assert_close(wide, ops.latte(q, theta, v)[0])


def test_half_a_state_is_an_error():
    q = torch.zeros(1, 4, 1, 2)
    with pytest.raises(RuntimeError, match="belong together"):
        ops.latte(q, q, q, state=torch.zeros(1, 1, 2, 2))
    with pytest.raises(RuntimeError, match="belong together"):
        ops.normalized_linear(q, q, q, state=torch.zeros(1, 1, 2, 2))
