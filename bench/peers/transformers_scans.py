"""delta_scan and gated_scan against transformers' PyTorch paths: Qwen3-Next's chunked gated delta rule, Mamba-2's chunked scan.

    build/bench-venv/bin/python bench/peers/transformers_scans.py [--tokens 4096] [--threads 2] [--rounds 7]
"""

import inspect

from common import HEADS, SIZE, Bench

bench = Bench("transformers", __doc__)
torch, ops = bench.torch, bench.ops

from transformers.models.mamba2.modeling_mamba2 import mamba2_chunk_scan  # noqa: E402
from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule  # noqa: E402

# Unwrapped: the wrappers use GPU kernels if they are installed.
delta_rule, mamba2 = inspect.unwrap(torch_chunk_gated_delta_rule), inspect.unwrap(mamba2_chunk_scan)


def ours_delta(q, k, v, beta, g):
    return ops.delta_scan(q, k, v, beta, g)[0]


def their_delta(q, k, v, beta, g):
    return delta_rule(q, k, v, g, beta)[0]


def ours_mamba(c, b, x, g):
    return ops.gated_scan(c, b, x, g, scale=1.0)[0]


def their_mamba(c, b, x, g):
    """A dt = g with dt = 1 for the input: their dt scales both, so A has the gate per token. 256 is Mamba-2's chunk."""
    dt = -g  # [B,T,H]; x / dt undoes what dt does to x
    return mamba2(x / dt[..., None], dt, -torch.ones(HEADS), b, c, 256)


for tokens in bench.tokens:
    q, k, v = bench.qkv(tokens)
    k = torch.nn.functional.normalize(k, dim=-1)
    beta, gate = torch.rand(1, tokens, HEADS), bench.gate(tokens, HEADS) - 0.01
    bench.both_passes("delta_scan/head", "transformers delta rule", tokens, ours_delta, their_delta, [q, k, v, beta, gate])
    # Leaves out the gate's gradient: theirs would include dividing by dt.
    scaled = [q * SIZE**-0.5, k, v]
    bench.both_passes(
        "gated_scan/head",
        "transformers Mamba-2",
        tokens,
        lambda *x: ours_mamba(*x, gate),
        lambda *x: their_mamba(*x, gate),
        scaled,
    )
bench.finish()
