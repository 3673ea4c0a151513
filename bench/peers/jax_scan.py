"""gated_scan and latte against jax.lax.scan: GLA token by token, and Latte as in the listing of its paper (arXiv:2402.17512, B.3).

    build/bench-venv/bin/python bench/peers/jax_scan.py [--tokens 4096] [--threads 2] [--rounds 7]
"""

from functools import partial

import numpy as np
from common import HEADS, SIZE, Bench, relative_error

bench = Bench("jax", __doc__, rounds=5)
torch, ops = bench.torch, bench.ops

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

UNROLL = 1  # the fastest of 1, 2, 4 and 16 on a CPU; the paper unrolls for its GPU


@jax.jit
def gla(q, k, v, g):
    """Moves time to the front for the scan: [B,T,H,*] -> [T,B,H,*]."""

    def step(state, now):
        q, k, v, g = now
        state = jnp.exp(g)[..., None] * state + k[..., None] * v[..., None, :]
        return state, jnp.einsum("bhk,bhkv->bhv", q, state)

    first = [jnp.moveaxis(x, 1, 0) for x in (q * q.shape[-1] ** -0.5, k, v, g)]
    start = jnp.zeros((q.shape[0], q.shape[2], k.shape[-1], v.shape[-1]))
    return jnp.moveaxis(jax.lax.scan(step, start, first, unroll=UNROLL)[1], 0, 1)


@jax.jit
def latte(query_logits, key_logits, v):
    """The paper's listing, after its projections."""

    def accumulate(carry, args):
        csum, norm_cumsum, prev_mx = carry
        Qs_t, curr_alpha, V_t, c_mx = args
        revert_maxi = jnp.exp(-c_mx + prev_mx)
        add_maxi = jnp.exp(curr_alpha - c_mx)
        norm_cumsum = jnp.einsum("BHL,BHL->BHL", norm_cumsum, revert_maxi)
        norm_cumsum += add_maxi
        carry = jnp.einsum("BHLD,BHL->BHLD", csum, revert_maxi)
        carry += jnp.einsum("BHL,BHD->BHLD", add_maxi, V_t)
        y = jnp.einsum("BHL,BHLD->BHD", Qs_t / norm_cumsum, carry)
        return ((carry, norm_cumsum, c_mx), y)

    Q, K, V = (jnp.moveaxis(x, 1, 0) for x in (query_logits, key_logits, v))
    maxi = jax.lax.cummax(K, axis=0)
    B, H, L, D = *Q.shape[1:], V.shape[-1]
    init = (jnp.zeros((B, H, L, D)), jnp.zeros((B, H, L)), K[0])
    xs = [jax.nn.softmax(Q, axis=-1), K, V, maxi]
    return jnp.moveaxis(jax.lax.scan(accumulate, init, xs, unroll=UNROLL)[1], 0, 1)


def as_torch(arrays):
    return [torch.from_numpy(np.array(x)) for x in arrays]


@partial(jax.jit, static_argnums=0)
def with_gradients(function, grad_o, *inputs):
    o, pull = jax.vjp(function, *inputs)
    return o, *pull(grad_o)


def compare(what, against, tokens, ours, theirs, inputs):
    """Waits for JAX's results inside the timed call; they become tensors only for the check."""
    arrays = [jnp.asarray(x.numpy()) for x in inputs]
    grad_o = bench.normal(tokens, HEADS, SIZE)
    weight = jnp.asarray(grad_o.numpy())

    def forward():
        with torch.no_grad():
            return [ours(*inputs)]

    def both():
        leaves = [x.detach().requires_grad_() for x in inputs]
        o = ours(*leaves)
        return [o.detach(), *torch.autograd.grad(o, leaves, grad_o)]

    passes = [
        ("forward", forward, lambda: [jax.block_until_ready(theirs(*arrays))], bench.rounds),
        ("forward+backward", both, lambda: jax.block_until_ready(with_gradients(theirs, weight, *arrays)), min(3, bench.rounds)),
    ]
    for name, mine, other, rounds in passes:
        error = max(relative_error(a, b) for a, b in zip(mine(), as_torch(other())))
        if bench.expect(f"{what} {name} T {tokens} against {against}", error, 1e-2):
            bench.measure(what, against, name, tokens, mine, other, rounds)


for tokens in bench.tokens:
    inputs = bench.qkv(tokens)
    gated = [*inputs, bench.gate(tokens, HEADS, SIZE)]
    compare("gated_scan/channel", "JAX lax.scan", tokens, lambda *x: ops.gated_scan(*x)[0], gla, gated)
    compare("latte", "JAX lax.scan (paper)", tokens, lambda *x: ops.latte(*x)[0], latte, inputs)
bench.finish()
