"""blurry_window, gated_slot and abc against their two-pass chunked forms in plain PyTorch.

    build/bench-venv/bin/python bench/peers/slots.py [--tokens 4096] [--threads 2] [--rounds 7]
"""

from common import HEADS, SIZE, Bench

CHUNK = 64
BLURRY_CHUNK = 16  # its products of decays are C x C matrices for every slot
SLOTS = 65
PERIOD = 2 * SLOTS

bench = Bench("slots", __doc__)
torch, ops = bench.torch, bench.ops


def chunks(x, size=CHUNK):
    """[B,T,H,X] -> [B,H,N,C,X]."""
    return x.unflatten(1, (-1, size)).permute(0, 3, 1, 2, 4)


def from_chunks(x):
    return x.permute(0, 2, 3, 1, 4).flatten(1, 2)


def states_between(decay, updates):
    """Returns the state before each chunk; decay [..,N,M,1], updates [..,N,M,X]."""
    state, states = torch.zeros_like(updates[:, :, 0]), []
    for keep, update in zip(decay.unbind(2), updates.unbind(2)):
        states.append(state)
        state = state * keep + update
    return torch.stack(states, 2)


def gated_slot(q, k, v, s, g):
    """GSA: scores against the slots' keys, a softmax over slots, the slots' values."""
    q, k, v, s, g = (chunks(x) for x in (q * q.shape[-1] ** -0.5, k, v, s, g))
    total = g.cumsum(-2)
    end = total[..., -1:, :]
    inside, outside, decay = s * (-total).exp(), s * (end - total).exp(), end.exp().mT
    grown = total.exp()
    key_states = states_between(decay, outside.mT @ k)
    scores = grown * ((q @ k.mT).tril() @ inside + q @ key_states.mT)
    p = scores.softmax(-1) * grown
    value_states = states_between(decay, outside.mT @ v)
    return from_chunks((p @ inside.mT).tril() @ v + p @ value_states)


def abc(q, k, v, s):
    """ABC: like GSA, with weights and decays from a running log-sum-exp."""
    z = s.logcumsumexp(1)
    g = torch.cat([torch.zeros_like(z[:, :1]), z[:, :-1] - z[:, 1:]], 1)
    return gated_slot(q, k, v, (s - z).exp(), g)


def blurry_tables(tokens):
    """Returns per token and slot the weight, the decay and whether it is hidden, and the products of decays within
    chunks."""
    time = torch.arange(tokens, dtype=torch.float64)[:, None]
    centre = torch.arange(SLOTS, dtype=torch.float64) * PERIOD / SLOTS
    modes = torch.arange(1, SLOTS // 2 + 1, dtype=torch.float64)
    w = (1 + 2 * torch.cos(2 * torch.pi / PERIOD * (time - centre)[..., None] * modes).sum(-1)) / SLOTS
    hidden = (centre > time).float().unflatten(0, (-1, BLURRY_CHUNK))
    w = w.unflatten(0, (-1, BLURRY_CHUNK))  # [N,C,M]
    keep = torch.ones(w.shape[0], BLURRY_CHUNK, BLURRY_CHUNK, SLOTS, dtype=torch.float64)  # Π of s < r <= t
    for t in range(BLURRY_CHUNK):
        keep[:, t, t + 1 :] = 0
        if t:
            keep[:, t, :t] = keep[:, t - 1, :t] * (1 - w[:, t, None])
    from_start = (1 - w).cumprod(1)
    inside = keep * w[:, None]  # [N,t,s,M]
    outside = inside[:, -1]
    return [x.float() for x in (inside, outside, from_start, from_start[:, -1])] + [hidden.bool()]


def blurry(q, k, v, tables):
    inside, outside, from_start, decay, hidden = tables
    q, k, v = (chunks(x, BLURRY_CHUNK) for x in (q * q.shape[-1] ** -0.5, k, v))
    decay, outside = decay[..., None], outside.mT  # [N,M,1], [N,M,C]
    key_states = states_between(decay.expand(1, 1, *decay.shape), outside @ k)
    scores = torch.einsum("bhnts,ntsm->bhntm", q @ k.mT, inside) + (q @ key_states.mT) * from_start
    p = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    value_states = states_between(decay.expand(1, 1, *decay.shape), outside @ v)
    return from_chunks(torch.einsum("bhntm,ntsm->bhnts", p, inside) @ v + (p * from_start) @ value_states)


def ours_blurry(q, k, v):
    return ops.blurry_window(q, k, v, slots=SLOTS, period=PERIOD)[0]


for tokens in bench.tokens:
    inputs = bench.qkv(tokens)
    gate = bench.gate(tokens, HEADS, SIZE)
    tables = blurry_tables(tokens)
    peer = "PyTorch two-pass"
    bench.both_passes("blurry_window", peer, tokens, ours_blurry, lambda q, k, v: blurry(q, k, v, tables), inputs)
    bench.both_passes("gated_slot", peer, tokens, lambda *x: ops.gated_slot(*x)[0], gated_slot, [*inputs, 1 - gate.exp(), gate])
    bench.both_passes("abc", peer, tokens, lambda *x: ops.abc(*x)[0], abc, [*inputs, bench.normal(tokens, HEADS, SIZE)])
bench.finish()
