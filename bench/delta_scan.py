"""Speed of delta_scan's kernel against its ATen form and transformers' chunked function, interleaved in one process.

    .venv/bin/python bench/delta_scan.py [--tokens 4096] [--heads 4] [--size 64] [--threads 2] [--rounds 9] [--isa avx512 avx2] [--gates head none channel]

Prints the median of tokens/s a case, forward and forward + backward, and how many times as fast as the others the first named is. Refuses
to print a number of what does not agree with the ATen form on the same inputs. Only the ratios of one run count.
"""

import argparse
import inspect
import os
import statistics
import time
from pathlib import Path

import torch
from transformers.models.qwen3_next import modeling_qwen3_next as qwen

ROOT = Path(__file__).resolve().parent.parent
CHUNKED = inspect.unwrap(qwen.torch_chunk_gated_delta_rule)  # under the wrapper that takes fla's Triton kernel, GPU or not
BUILD = Path(os.environ.get("CORTADO_BUILD", ROOT / "build/release"))


def make(gate, options):
    t, h, k = options.tokens, options.heads, options.size
    q, x, v = (torch.randn(1, t, h, k) for _ in range(3))
    shapes = {"channel": (1, t, h, k), "head": (1, t, h), "none": None}
    g = None if shapes[gate] is None else torch.rand(shapes[gate]) * -0.2
    return [q, torch.nn.functional.normalize(x, dim=-1), v, torch.rand(1, t, h), g]


def ours(isa):
    def run(q, k, v, beta, g):
        torch.ops.cortado._select_isa(isa)
        return torch.ops.cortado.delta_scan(q, k, v, beta, g)[0]

    return run


def theirs(q, k, v, beta, g):
    g = torch.zeros_like(beta) if g is None else g
    return CHUNKED(q, k, v, g=g, beta=beta)[0]


def call(run, inputs, grad_o=None):
    leaves = [x if x is None else x.detach().requires_grad_(grad_o is not None) for x in inputs]
    o = run(*leaves)
    return [o] if grad_o is None else [o, *torch.autograd.grad(o, [x for x in leaves if x is not None], grad_o)]


def check(runs, inputs, grad_o):
    right = call(runs["aten"], inputs, grad_o)
    for name, run in runs.items():
        for a, b in zip(call(run, inputs, grad_o), right):
            error = ((a - b).abs().max() / b.abs().max()).item()
            if not error < 2e-4:
                raise SystemExit(f"{name} differs from aten by {error:.1e}: no numbers")


def measure(runs, rounds, inputs, grad_o=None):
    times = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            call(run, inputs, grad_o)
            if number:  # the first is a rehearsal
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(x) for name, x in times.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in [("tokens", 4096), ("heads", 4), ("size", 64), ("threads", 2), ("rounds", 9)]:
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--isa", nargs="+", default=None)
    parser.add_argument("--gates", nargs="+", default=["head", "none", "channel"])
    options = parser.parse_args()
    torch.ops.load_library(str(BUILD / "lib/libcortado_ops.so"))
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    print(f"{options.threads} threads, B 1, T {options.tokens}, H {options.heads}, K = V = {options.size}, float32; million tokens/s")
    for gate in options.gates:
        inputs, grad_o = make(gate, options), torch.randn(1, options.tokens, options.heads, options.size)
        runs = {isa: ours(isa) for isa in [*(options.isa or torch.ops.cortado._available_isas()[:1]), "aten"]}
        if gate != "channel":
            runs["transformers"] = theirs
        check(runs, inputs, grad_o)
        with torch.no_grad():
            forward = measure(runs, options.rounds, inputs)
        both = measure(runs, options.rounds, inputs, grad_o)
        first, speed = next(iter(runs)), options.tokens / 1e6
        for name in runs:
            print(
                f"{gate:8} {name:12} forward {speed / forward[name]:6.3f} (1/{forward[name] / forward[first]:.1f})   "
                f"with backward {speed / both[name]:6.3f} (1/{both[name] / both[first]:.1f}), {forward[name] / both[name]:.3f} of its forward",
                flush=True,
            )


if __name__ == "__main__":
    main()
