#!/usr/bin/env python3
"""One token of every operator on this GPU: microseconds, as calls from Python and replayed as a CUDA graph.

    python bench/cuda/steps.py [--json FILE]

H 16, K = V = 64, float32 states that go on, bfloat16 inputs. A graph holds 20 calls, one after the other; what can't be captured
says so. CORTADO_OPS names the library, else build/release/lib."""

import argparse
import json
import os
import pathlib
import time

import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
OPS = torch.ops.cortado
HEADS, WIDTH, CALLS, BATCHES, KEYS = 16, 64, 20, (1, 8, 64), 2048


def short(*sizes):
    return torch.randn(*sizes, device="cuda").bfloat16()


def gates(*sizes):
    return (1 - torch.rand(*sizes, device="cuda")).log() * 0.1  # never -inf


def scan(gate, delta=False):
    def make(b):
        q, k, v = (short(b, 1, HEADS, WIDTH) for _ in range(3))
        k = torch.nn.functional.normalize(k, dim=-1) if delta else k
        state = torch.zeros(b, HEADS, WIDTH, WIDTH, device="cuda")
        g = {"head": gates(b, 1, HEADS), "channel": gates(b, 1, HEADS, WIDTH)}.get(gate)
        if delta:
            beta = torch.rand(b, 1, HEADS, device="cuda")
            return lambda: OPS.delta_scan(q, k, v, beta, g, initial_state=state)
        return lambda: OPS.gated_scan(q, k, v, g, initial_state=state)

    return make


def slots(b):
    q, w, x = (short(b, 1, HEADS, WIDTH) for _ in range(3))
    state, decay = torch.zeros(b, HEADS, WIDTH, WIDTH, device="cuda"), torch.rand(b, 1, HEADS, WIDTH, device="cuda")
    return lambda: OPS.slot_scan(q, w, x, decay, initial_state=state)


def latte(b):
    q, k, v = (short(b, 1, HEADS, WIDTH) for _ in range(3))
    state, normalizer, maximum = OPS.latte(*(short(b, 9, HEADS, WIDTH) for _ in range(3)))[1:]
    return lambda: OPS.latte(q, k, v, state=state, normalizer=normalizer, maximum=maximum)


def window(keys):
    def make(b):
        q, k, v = short(b, 1, HEADS, WIDTH), short(b, keys, HEADS, WIDTH), short(b, keys, HEADS, WIDTH)
        return lambda: OPS.window_attention(q, k, v)

    return make


def elementwise(b):
    a, x, state = gates(b, 1, HEADS * WIDTH), torch.randn(b, 1, HEADS * WIDTH, device="cuda"), torch.randn(b, HEADS * WIDTH, device="cuda")
    return lambda: OPS.elementwise_scan(a, x, initial_state=state)


def conv(b):
    x, w, state = short(b, 1, HEADS * WIDTH), short(HEADS * WIDTH, 4), torch.randn(b, 3, HEADS * WIDTH, device="cuda")
    return lambda: OPS.short_conv(x, w, initial_state=state)


def softmax(b):
    q, k, v = short(b, HEADS, 1, WIDTH), short(b, HEADS, KEYS, WIDTH), short(b, HEADS, KEYS, WIDTH)
    return lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v)


STEPS = {"gated_scan, no gate": scan(None), "gated_scan, head gate": scan("head"), "gated_scan, channel gate": scan("channel"),
         "slot_scan": slots, "delta_scan, head gate": scan("head", True), "delta_scan, channel gate": scan("channel", True),
         "latte": latte, "window_attention, 128 keys": window(128), f"window_attention, {KEYS} keys": window(KEYS),
         "elementwise_scan": elementwise, "short_conv": conv, f"SDPA, {KEYS} keys (PyTorch)": softmax}  # fmt: skip


def microseconds(work, calls, turns=15):
    found = []
    for _ in range(turns):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        work()
        torch.cuda.synchronize()
        found.append((time.perf_counter() - begin) / calls * 1e6)
    return sorted(found)[turns // 2]


def many(step):
    return lambda: [step() for _ in range(CALLS)]


def replayed(step):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            step()
    return microseconds(graph.replay, CALLS)


@torch.no_grad()
def measure(name, b):
    step = STEPS[name](b)
    row = {"operator": name, "batch": b, "called_us": microseconds(many(step), CALLS)}
    try:
        row["replayed_us"] = replayed(step)
    except Exception as problem:
        row["not_captured"] = str(problem).splitlines()[0][:200]
        torch.cuda.synchronize()
    return row


def table(rows):
    by = {(row["operator"], row["batch"]): row for row in rows}
    told = lambda row, what: f"{row[what]:.1f}" if what in row else "-"
    lines = ["| one token of | " + " | ".join(f"B {b}, called | replayed" for b in BATCHES) + " |", "|---|" + "--:|--:|" * len(BATCHES)]
    for name in STEPS:
        cells = [told(by[name, b], what) for b in BATCHES for what in ("called_us", "replayed_us") if (name, b) in by]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=pathlib.Path)
    chosen = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("[bench-cuda] there is no GPU here")
    torch.ops.load_library(os.environ.get("CORTADO_OPS", str(ROOT / "build/release/lib/libcortado_ops.so")))
    rows = [measure(name, b) for name in STEPS for b in BATCHES]
    if chosen.json:
        chosen.json.write_text(json.dumps({"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}, indent=1) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
