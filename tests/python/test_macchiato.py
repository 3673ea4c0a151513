"""macchiato against its definition in numpy, with gradients, opcheck and torch.compile."""

import numpy as np
import pytest
import torch
from by_hand import arrays, numpy_latte, per_head, randn, softmax

ops = torch.ops.cortado


def numpy_window(q, k, v, window, causal):
    out = []
    for t in range(len(q)):
        low, high = max(0, t - window + 1), t + 1 if causal else min(len(k), t + window)
        out.append(softmax(k[low:high] @ q[t] / np.sqrt(q.shape[1]), 0) @ v[low:high])
    return np.stack(out)


@pytest.mark.parametrize("causal", [True, False])
def test_equals_numpy(causal):
    logits, theta, v = randn(1, 50, 2, 6), randn(1, 50, 2, 5, seed=1), randn(1, 50, 2, 4, seed=2)
    wq, wk = randn(1, 50, 2, 6, seed=3), randn(1, 50, 2, 6, seed=4)

    def one_head(logits, theta, v, wq, wk):
        p = softmax(logits, 1)
        return p[:, :1] * numpy_window(wq, wk, v, 7, causal) + numpy_latte(p[:, 1:], theta, v, causal)

    o, *_ = ops.macchiato(logits, theta, v, wq, wk, window=7, causal=causal)
    np.testing.assert_allclose(o.detach().numpy(), per_head(one_head, *arrays(logits, theta, v, wq, wk)), rtol=1e-9, atol=1e-10)


def test_gradients():
    tensors = (randn(1, 6, 1, 3), randn(1, 6, 1, 2, seed=1), randn(1, 6, 1, 2, seed=2), randn(1, 6, 1, 2, seed=3), randn(1, 6, 1, 2, seed=4))
    assert torch.autograd.gradcheck(lambda *x: ops.macchiato(*x, window=3)[0], tensors)


def test_opcheck():
    logits, theta, v, w = (randn(1, 20, 2, n, dtype=torch.float32) for n in (6, 5, 4, 4))
    torch.library.opcheck(ops.macchiato, (logits, theta, v, w, w), {"window": 5})


def test_compiles_whole_with_a_past():
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


def test_packed_with_a_past_equals_each_sequence_alone():
    packed, tensors, separate = packed_with_past()
    torch.testing.assert_close(packed(*tensors), separate(*tensors))
    assert torch.autograd.gradcheck(packed, tensors)


def test_compiles_whole_packed_with_a_past():
    packed, tensors, _ = packed_with_past()
    compiled = torch.compile(packed, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*tensors), packed(*tensors))
    gradients = [torch.autograd.grad(f(*tensors).square().sum(), tensors) for f in (compiled, packed)]
    torch.testing.assert_close(*gradients)


def test_packed_with_a_past_has_a_meta_form():
    tensors = packed_with_past(torch.float32)[1]
    bounds, lengths = torch.tensor([0, 5, 5, 9]), torch.tensor([3, 2, 0])
    options = {"window": 4, "past_k": tensors[5], "past_v": tensors[6], "past_length": lengths, "cu_seqlens": bounds}
    torch.library.opcheck(ops.macchiato, tensors[:5], options)
    meta = {name: x.to("meta") if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    assert ops.macchiato(*(x.to("meta") for x in tensors[:5]), **meta)[0].shape == (1, 9, 2, 2)


@pytest.mark.parametrize("bounds", [None, torch.tensor([0, 5])])
def test_does_not_round_its_past(bounds):
    logits, theta, v, w = (randn(1, 5, 2, n, dtype=torch.bfloat16) for n in (4, 3, 2, 5))
    past_k, past_v = randn(1, 3, 2, 5, seed=7), randn(1, 3, 2, 2, seed=8)
    run = {"window": 4, "past_k": past_k, "past_v": past_v, "cu_seqlens": bounds}
    short, state, *_ = ops.macchiato(logits, theta, v, w, w, **run)
    exact = ops.macchiato(logits.double(), theta.double(), v.double(), w.double(), w.double(), **run)[0]
    assert short.dtype == torch.bfloat16 and state.dtype == torch.float64
    assert torch.equal(short, exact.bfloat16())  # computed in the past's float64, rounded once


@pytest.mark.parametrize("length, message", [(4, "at most 3, got 4"), (-1, "at least 0, got -1"), (1.0, "must be integers")])
def test_refuses_a_past_length_that_is_none(length, message):
    x, past = torch.zeros(1, 5, 1, 2), torch.zeros(1, 3, 1, 2)
    with pytest.raises(RuntimeError, match=message):
        ops.macchiato(torch.zeros(1, 5, 1, 3), x, x, x, x, window=4, past_k=past, past_v=past, past_length=torch.tensor([length]))
