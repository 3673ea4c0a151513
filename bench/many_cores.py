#!/usr/bin/env python3
"""How operators scale with threads where there are few heads: one row, beside a copy of memory and a product of matrices.

    python bench/many_cores.py [--threads 1,16] [--tokens 4096,16384] [--heads 4] [--rounds 5] [--json FILE]

Milliseconds on each number of threads, taking turns, the fastest round; and the last over the first. CORTADO_BUILD names
the folder with lib/, else build/release. A measurement to read, not a test."""

import argparse
import json
import os
import pathlib
import time

import torch

ROOT = pathlib.Path(__file__).resolve().parents[1]
ops = torch.ops.cortado


def operators(tokens, heads, keys=64):
    """{name: (function, inputs)}, float32."""
    torch.manual_seed(0)
    q, v = torch.randn(1, tokens, heads, keys), torch.randn(1, tokens, heads, keys)
    k = torch.nn.functional.normalize(torch.randn(1, tokens, heads, keys), dim=-1)
    channel, head, beta = -0.1 * torch.rand(1, tokens, heads, keys), -0.1 * torch.rand(1, tokens, heads), torch.rand(1, tokens, heads)
    decays, b = -torch.rand(1, tokens, heads * keys), torch.randn(1, tokens, heads * keys)
    return {
        "gated_scan, head gate": (lambda *x: ops.gated_scan(*x)[0], (q, k, v, head)),
        "gated_scan, channel gate": (lambda *x: ops.gated_scan(*x)[0], (q, k, v, channel)),
        "gated_scan, read by value": (lambda *x: ops.gated_scan(*x, read="value")[0], (v, k, v, channel)),
        "delta_scan, head gate": (lambda *x: ops.delta_scan(*x)[0], (q, k, v, beta, head)),
        "delta_scan, channel gate": (lambda *x: ops.delta_scan(*x)[0], (q, k, v, beta, channel)),
        "latte": (lambda *x: ops.latte(*x)[0], (q, k, v)),
        "macchiato, window 128": (lambda *x: ops.macchiato(*x, window=128)[0], (torch.nn.functional.pad(q, (1, 0)), k, v, q, k)),
        "elementwise_scan": (lambda *x: ops.elementwise_scan(*x)[0], (decays, b)),
    }  # fmt: skip


def works(tokens, heads):
    """(name, function) of everything that is timed."""
    copied, to = torch.randn(1 << 25), torch.empty(1 << 25)
    x = torch.randn(2048, 2048)
    yield "copy of 128 MiB", lambda: to.copy_(copied)
    yield "product of 2,048 x 2,048", lambda: x @ x
    for name, (call, inputs) in operators(tokens, heads).items():
        leaves = [each.clone().requires_grad_() for each in inputs]
        weight = torch.randn_like(call(*inputs))

        def forward(call=call, inputs=inputs):
            with torch.no_grad():
                call(*inputs)

        yield f"{name}: forward", forward
        yield f"{name}: and backward", lambda call=call, leaves=leaves, weight=weight: torch.autograd.grad(call(*leaves), leaves, weight)


def fastest(work, threads, rounds):
    """{threads: milliseconds}"""
    best = dict.fromkeys(threads, float("inf"))
    for _ in range(rounds):
        for count in threads:
            torch.set_num_threads(count)
            work()
            begin = time.perf_counter()
            for _ in range(2):
                work()
            best[count] = min(best[count], (time.perf_counter() - begin) / 2 * 1e3)
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers = lambda text: [int(part) for part in text.split(",")]
    parser.add_argument("--threads", type=numbers, default=[1, os.cpu_count()])
    parser.add_argument("--tokens", type=numbers, default=[4096, 16384])
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=pathlib.Path)
    chosen = parser.parse_args()
    build = pathlib.Path(os.environ.get("CORTADO_BUILD", ROOT / "build/release"))
    torch.ops.load_library(build / "lib/libcortado_ops.so")
    found = []
    for tokens in chosen.tokens:
        print(f"\n{tokens:,} tokens, {chosen.heads} heads, ms".ljust(42) + "".join(f"{count:>10}" for count in chosen.threads) + "   times as fast")
        for name, work in works(tokens, chosen.heads):
            best = fastest(work, chosen.threads, chosen.rounds)
            found.append({"work": name, "tokens": tokens, "heads": chosen.heads, "milliseconds": best})
            ratio = best[chosen.threads[0]] / best[chosen.threads[-1]]
            print(f"{name:41}" + "".join(f"{best[count]:10.2f}" for count in chosen.threads) + f"{ratio:10.2f}", flush=True)
    if chosen.json:
        chosen.json.write_text(json.dumps({"cpus": os.cpu_count(), "rows": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
