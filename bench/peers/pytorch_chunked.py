"""gated_scan and latte against chunked forms in plain PyTorch, as one writes them without a kernel.

    build/bench-venv/bin/python bench/peers/pytorch_chunked.py [--tokens 4096] [--threads 2] [--rounds 7]
"""

from common import HEADS, SIZE, Bench

CHUNK = 64

bench = Bench("pytorch_chunked", __doc__)
torch, ops = bench.torch, bench.ops


def chunks(x):
    """[B,T,H,X] -> [B,H,N,C,X]."""
    return x.unflatten(1, (-1, CHUNK)).permute(0, 3, 1, 2, 4)


def from_chunks(x):
    return x.permute(0, 2, 3, 1, 4).flatten(1, 2)


def gla(q, k, v, g):
    """Gated linear attention: products within a chunk, a state between chunks."""
    q, k, v, g = (chunks(x) for x in (q * q.shape[-1] ** -0.5, k, v, g))
    total = g.cumsum(-2)
    end = total[..., -1:, :]
    q_in, k_in, k_out = q * total.exp(), k * (-total).exp(), k * (end - total).exp()
    o = (q_in @ k_in.mT).tril() @ v
    updates = k_out.mT @ v
    state, states = torch.zeros_like(updates[:, :, 0]), []
    for keep, update in zip(end.exp().mT.unbind(2), updates.unbind(2)):
        states.append(state)
        state = state * keep + update
    return from_chunks(o + q_in @ torch.stack(states, 2))


def latte(query_logits, key_logits, v):
    """Softmax over time by a running maximum of chunks, rescaling the state from chunk to chunk."""
    p, theta, v = chunks(torch.softmax(query_logits, -1)), chunks(key_logits), chunks(v)
    maximum = theta.detach().amax(-2, keepdim=True).cummax(2).values
    weights = (theta - maximum).exp()
    rescale = torch.cat([torch.zeros_like(maximum[:, :, :1]), (maximum[:, :, :-1] - maximum[:, :, 1:]).exp()], 2)
    local, updates = weights.cumsum(-2), weights.mT @ v
    state, norm = torch.zeros_like(updates[:, :, 0]), torch.zeros_like(local[:, :, 0, :1])
    states, norms = [], []
    for keep, update, weight in zip(rescale.unbind(2), updates.unbind(2), local[..., -1:, :].unbind(2)):
        state, norm = state * keep.mT, norm * keep
        states.append(state)
        norms.append(norm)
        state, norm = state + update, norm + weight
    q = p / (local + torch.stack(norms, 2))
    return from_chunks((q @ weights.mT).tril() @ v + q @ torch.stack(states, 2))


def ours_gla(q, k, v, g):
    return ops.gated_scan(q, k, v, g)[0]


def ours_latte(query_logits, key_logits, v):
    return ops.latte(query_logits, key_logits, v)[0]


for tokens in bench.tokens:
    inputs = bench.qkv(tokens)
    bench.both_passes("gated_scan/channel", "PyTorch chunked GLA", tokens, ours_gla, gla, [*inputs, bench.gate(tokens, HEADS, SIZE)])
    bench.both_passes("latte", "PyTorch chunked Latte", tokens, ours_latte, latte, inputs)
bench.finish()
