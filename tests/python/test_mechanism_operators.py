"""latte and normalized_linear against their definitions in numpy, with gradients, opcheck and torch.compile."""

import numpy as np
import pytest
import torch
from by_hand import arrays, numpy_latte, per_head, randn, softmax

ops = torch.ops.cortado


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
    for args, options in [(ops.latte, (q, theta, v)), (ops.normalized_linear, (q.exp(), theta.exp(), v))]:
        torch.library.opcheck(args, options)


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
    with torch.autocast(torch.get_default_device().type, dtype=torch.bfloat16):
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
