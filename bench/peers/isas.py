"""gated_scan's kernel on the best instruction set against the others, and against its ATen form.

    build/bench-venv/bin/python bench/peers/isas.py [--tokens 4096] [--threads 2] [--rounds 3]
"""

from common import HEADS, SIZE, Bench

bench = Bench("isas", __doc__, rounds=3)
torch, ops = bench.torch, bench.ops
best, *others = ops._available_isas()


def on(isa, read):
    def call(*inputs):
        ops._select_isa(isa)
        return ops.gated_scan(*inputs, read=read)[0]

    return call


for tokens in bench.tokens:
    for gate, read in [("channel", "key"), ("head", "key"), ("none", "key"), ("channel", "value")]:
        inputs = bench.qkv(tokens)
        if gate != "none":
            inputs.append(bench.gate(tokens, HEADS, *([SIZE] if gate == "channel" else [])))
        for isa in others:
            bench.both_passes(f"gated_scan/{gate}/{read}", f"{isa} ({best} ours)", tokens, on(best, read), on(isa, read), inputs)
bench.finish()
