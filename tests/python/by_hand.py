"""Shared by the tests of operators: operands, and Latte in numpy."""

import numpy as np
import torch


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
