"""window_attention and latte against PyTorch's scaled_dot_product_attention, which sees all keys before.

    build/bench-venv/bin/python bench/peers/sdpa.py [--tokens 256 1024 4096 16384] [--threads 2] [--rounds 5]
"""

from common import HEADS, SIZE, Bench, relative_error

WINDOW = 128
CHECKED = 1024  # tokens of the masked T x T matrix

bench = Bench("sdpa", __doc__, rounds=5, tokens=(256, 1024, 4096, 16384))
torch, ops = bench.torch, bench.ops


def sdpa(q, k, v, mask=None):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    o = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
    return o.transpose(1, 2)


def window(q, k, v):
    return ops.window_attention(q, k, v, window=WINDOW)[0]


def full(q, k, v):
    return ops.window_attention(q, k, v)[0]


def latte(query_logits, key_logits, v):
    return ops.latte(query_logits, key_logits, v)[0]


def latte_by_definition(query_logits, key_logits, v):
    p, weights = torch.softmax(query_logits, -1), torch.exp(key_logits.double())
    sums = torch.cumsum(torch.einsum("bthl,bthv->bthlv", weights, v.double()), 1)
    return torch.einsum("bthl,bthlv->bthv", p.double() / weights.cumsum(1), sums)


def gradients(function, inputs, grad_o):
    leaves = [x.detach().requires_grad_() for x in inputs]
    o = function(*leaves)
    return [o.detach(), *torch.autograd.grad(o, leaves, grad_o)]


def check(tokens, inputs, grad_o):
    """Checks the window against SDPA with a band as its mask, and Latte against its definition, on the first tokens."""
    first = [x[:, :CHECKED] for x in inputs]
    place = torch.arange(first[0].shape[1])
    distance = place[:, None] - place
    band = (distance >= 0) & (distance < WINDOW)
    error = 0.0
    for ours, theirs in [(window, lambda q, k, v: sdpa(q, k, v, band)), (latte, latte_by_definition)]:
        pairs = zip(gradients(ours, first, grad_o[:, :CHECKED]), gradients(theirs, first, grad_o[:, :CHECKED]))
        error = max(error, *(relative_error(a.double(), b.double()) for a, b in pairs))
    return bench.expect(f"window_attention and latte T {tokens}", error, 1e-3)


for tokens in bench.tokens:
    inputs = bench.qkv(tokens)
    grad_o = bench.normal(tokens, HEADS, SIZE)
    right = check(tokens, inputs, grad_o)
    bench.both_passes("window_attention/full", "SDPA", tokens, full, sdpa, inputs)
    if not right:
        continue
    for what, ours in [(f"window_attention/{WINDOW}", window), ("latte", latte)]:
        with torch.no_grad():
            bench.measure(what, "SDPA", "forward", tokens, lambda: ours(*inputs), lambda: sdpa(*inputs))
        bench.measure(
            what, "SDPA", "forward+backward", tokens, lambda: gradients(ours, inputs, grad_o), lambda: gradients(sdpa, inputs, grad_o)
        )
bench.finish()
