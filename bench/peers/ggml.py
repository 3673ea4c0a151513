"""gated_scan and delta_scan against ggml's operators (llama.cpp): gated linear attention, RWKV-6, Mamba-2's scan, the gated delta net.

    build/bench-venv/bin/python bench/peers/ggml.py [--tokens 4096] [--threads 2] [--rounds 15]

Forward only: ggml has no backward of these. What Mamba-2 does to its inputs (softplus, dt times x) is done for ours beforehand.
"""

from common import HEADS, SIZE, Bench

bench = Bench("ggml", __doc__, rounds=15)
torch, ops = bench.torch, bench.ops

import numpy as np  # noqa: E402
from ggml_library import Ggml  # noqa: E402

ggml = Ggml(bench.threads)


def timed(x):
    """[1,T,H,X] -> ggml [X,H,T,1]."""
    return ggml.tensor(x.numpy(), x.shape[3], x.shape[2], x.shape[1], 1)


def compare(what, name, tokens, ours, *arguments):
    compute, memory = ggml.call(name, *arguments)
    output = torch.from_numpy(memory[: tokens * HEADS * SIZE]).view(1, tokens, HEADS, SIZE)

    def theirs():
        compute()
        return [output]

    with torch.no_grad():
        bench.compare(what, name, "forward", tokens, lambda: [ours()[0]], theirs)


for tokens in bench.tokens:
    q, k, v = bench.qkv(tokens)
    gate, beta, dt = bench.gate(tokens, HEADS, SIZE), torch.rand(1, tokens, HEADS), bench.normal(tokens, HEADS) - 2
    unit, bonus, a = torch.nn.functional.normalize(k, dim=-1), torch.randn(HEADS, SIZE), -torch.rand(HEADS)
    state = ggml.tensor(np.zeros(HEADS * SIZE * SIZE, np.float32), HEADS * SIZE * SIZE, 1)
    matrices = ggml.tensor(np.zeros(HEADS * SIZE * SIZE, np.float32), SIZE, SIZE, HEADS, 1)
    tq, tk, tv, decay = timed(q), timed(k), timed(v), timed(gate.exp())

    # cortado takes log gates, so ggml gets their exponentials.
    compare(
        "gated_scan/channel", "ggml_gated_linear_attn", tokens, lambda: ops.gated_scan(q, k, v, gate), tk, tv, tq, decay, state, SIZE**-0.5
    )
    compare(
        "gated_scan/bonus",
        "ggml_rwkv_wkv6",
        tokens,
        lambda: ops.gated_scan(q, k, v, gate, bonus=bonus, scale=1.0),
        *(tk, tv, tq, ggml.tensor(bonus.numpy(), SIZE, HEADS), decay, state),
    )
    step = torch.nn.functional.softplus(dt)
    head_gate, scaled = step * a, v * step[..., None]
    scan = (
        *(matrices, tv, ggml.tensor(dt.numpy(), HEADS, tokens, 1), ggml.tensor(a.numpy(), 1, HEADS), tk, tq),
        *(ggml.tensor(np.zeros(1, np.int32), 1), 1),
    )
    compare("gated_scan/head", "ggml_ssm_scan", tokens, lambda: ops.gated_scan(q, k, scaled, head_gate, scale=1.0), *scan)
    # Without a gate: A = 0, and a dt whose softplus is 1.
    one = torch.full_like(dt, float(np.log(np.expm1(1.0))))
    scan = (
        *(matrices, tv, ggml.tensor(one.numpy(), HEADS, tokens, 1), ggml.tensor(np.zeros(HEADS, np.float32), 1, HEADS), tk, tq),
        *(ggml.tensor(np.zeros(1, np.int32), 1), 1),
    )
    compare("gated_scan/none", "ggml_ssm_scan", tokens, lambda: ops.gated_scan(q, k, v, scale=1.0), *scan)
    scalar_gate = bench.gate(tokens, HEADS)
    compare(
        "delta_scan/head",
        "ggml_gated_delta_net",
        tokens,
        lambda: ops.delta_scan(q, unit, v, beta, scalar_gate),
        *(tq, timed(unit), tv, timed(scalar_gate[..., None]), timed(beta[..., None]), matrices, 1),
    )
bench.finish()
