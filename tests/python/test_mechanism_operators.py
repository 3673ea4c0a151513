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
