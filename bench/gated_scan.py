"""Speed of gated_scan's kernel against its ATen form, interleaved in one process.

    .venv/bin/python bench/gated_scan.py [--tokens 4096] [--heads 4] [--size 64] [--threads 2] [--rounds 15] [--isa avx512 avx2 aten]

Prints the median of tokens/s a case, forward and forward + backward, and the ratio to the last instruction set named. Refuses to print a
number of what does not agree with the ATen form on the same inputs. Times move by 15 % between minutes: only the ratios of one run count.
"""

import argparse
import os
import statistics
import time
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
BUILD = Path(os.environ.get("CORTADO_BUILD", ROOT / "build/release"))


def make(gate, read, options):
    b, t, h, k = 1, options.tokens, options.heads, options.size
    shapes = {"channel": (b, t, h, k), "head": (b, t, h), "constant": (h,), "none": None}
    inputs = [torch.randn(b, t, h, k) for _ in range(3)]
    g = None if shapes[gate] is None else torch.rand(shapes[gate]) * -0.2
    return inputs + [g]


def call(inputs, read, grad_o=None):
    leaves = [x if x is None else x.detach().requires_grad_(grad_o is not None) for x in inputs]
    o, state = torch.ops.cortado.gated_scan(*leaves, read=read)
    if grad_o is None:
        return [o, state]
    return [o, state, *torch.autograd.grad(o, [x for x in leaves if x is not None], grad_o)]


def check(inputs, read, grad_o, isas):
    found = {}
    for isa in [*isas, "aten"]:
        torch.ops.cortado._select_isa(isa)
        found[isa] = call(inputs, read, grad_o)
    for isa in isas:
        for a, b in zip(found[isa], found["aten"]):
            error = ((a - b).abs().max() / b.abs().max()).item()
            if not error < 1e-4:
                raise SystemExit(f"{isa} differs from aten by {error:.1e}: no numbers")


def measure(run, isas, rounds):
    times = {isa: [] for isa in isas}
    for number in range(rounds + 1):
        for isa in isas:
            torch.ops.cortado._select_isa(isa)
            start = time.perf_counter()
            run()
            if number:  # the first is a rehearsal
                times[isa].append(time.perf_counter() - start)
    return {isa: statistics.median(x) for isa, x in times.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in [("tokens", 4096), ("heads", 4), ("size", 64), ("threads", 2), ("rounds", 15)]:
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--isa", nargs="+", default=None)
    options = parser.parse_args()
    torch.ops.load_library(str(BUILD / "lib/libcortado_ops.so"))
    torch.set_num_threads(options.threads)
    known = torch.ops.cortado._available_isas()
    isas = options.isa or [known[0], "aten"]
    torch.manual_seed(0)
    print(f"{options.threads} threads, B 1, T {options.tokens}, H {options.heads}, K = V = {options.size}, float32; million tokens/s")
    for gate, read in [("channel", "key"), ("head", "key"), ("none", "key"), ("channel", "value")]:
        inputs = make(gate, read, options)
        grad_o = torch.randn(1, options.tokens, options.heads, options.size)
        check(inputs, read, grad_o, isas)
        with torch.no_grad():
            forward = measure(lambda: call(inputs, read), isas, options.rounds)
        both = measure(lambda: call(inputs, read, grad_o), isas, options.rounds)
        for isa in isas:
            speed = options.tokens / 1e6
            print(
                f"{gate:8} {read:6} {isa:7} forward {speed / forward[isa]:6.2f} ({forward[isas[-1]] / forward[isa]:5.2f}x)   "
                f"with backward {speed / both[isa]:6.3f} ({both[isas[-1]] / both[isa]:5.2f}x), {forward[isa] / both[isa]:.3f} of its forward",
                flush=True,
            )


if __name__ == "__main__":
    main()
