"""Shared code of the benchmarks against other implementations: pinning, our operators, the check, measuring in turns,
JSON.

A script makes one Bench, and calls `compare` for each line: both sides run once on the same inputs, their results are compared, and only
if they agree are they timed, in turns, and their medians printed. Times move by 15 % between minutes: only the ratios of one run count.
"""

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("CORTADO_BUILD", ROOT / "build/release"))
RESULTS = ROOT / "build/bench"
HEADS, SIZE = 4, 64


def relative_error(actual, expected):
    """Returns the largest difference over the largest magnitude of `expected`."""
    if actual.shape != expected.shape:
        return float("inf")
    error = (actual - expected).abs().max() / expected.abs().max().clamp_min(1e-30)
    return error.item() if error == error else float("inf")


def medians(calls, rounds, least=0.1):
    """Seconds of each call: the medians of `rounds` turns after a rehearsal, which says how often a short one is repeated.

    A turn is long enough that what the other's left in the caches, and its threads that still spin, do not decide it.
    """
    times, repeats = [[] for _ in calls], []
    for call in calls:
        start = time.perf_counter()
        call()
        repeats.append(max(1, int(least / (time.perf_counter() - start))))
    for _ in range(rounds):
        for call, repeat, taken in zip(calls, repeats, times):
            start = time.perf_counter()
            for _ in range(repeat):
                call()
            taken.append((time.perf_counter() - start) / repeat)
    return [statistics.median(x) for x in times]


class Bench:
    """One peer's benchmark. Threads are pinned before torch, JAX and others make theirs: import those after it."""

    def __init__(self, name, description, rounds=7, tokens=(4096,), setting=f"B 1, H {HEADS}, K = V = {SIZE}, float32", names=()):
        """`names`: what --only may choose."""
        parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--threads", type=int, default=min(2, len(os.sched_getaffinity(0))), help="also the CPUs that are used")
        parser.add_argument("--rounds", type=int, default=rounds, help="the median of so many is printed")
        parser.add_argument("--tokens", type=int, nargs="+", default=list(tokens))
        if names:
            parser.add_argument("--only", nargs="+", choices=names, default=list(names), metavar="NAME", help=", ".join(names))
        options = parser.parse_args()
        self.name, self.rounds, self.tokens, self.threads = name, options.rounds, options.tokens, options.threads
        self.only = getattr(options, "only", [])
        self.rows, self.refused = [], []
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: self.threads])
        os.environ["OMP_NUM_THREADS"] = str(self.threads)
        import torch

        torch.set_num_threads(self.threads)
        torch.manual_seed(0)
        torch.ops.load_library(str(BUILD / "lib/libcortado_ops.so"))
        self.torch, self.ops = torch, torch.ops.cortado
        print(f"{name}: {self.threads} threads, {setting}; milliseconds, medians of {self.rounds}")

    def compare(self, what, against, passes, tokens, ours, theirs, tolerance=1e-3, rounds=None):
        """Measures one line. `ours` and `theirs` return lists of tensors that must agree (None: of another function,
        checked elsewhere)."""
        found, wanted = ours(), theirs()
        pairs = [(a, b) for a, b in zip(found, wanted) if a is not None and b is not None]
        error = max((relative_error(a, b) for a, b in pairs), default=0.0)
        del found, wanted, pairs
        self.expect(f"{what} {passes} T {tokens} against {against}", error, tolerance) and self.measure(
            what, against, passes, tokens, ours, theirs, rounds
        )

    def expect(self, line, error, tolerance):
        """Returns whether both agree; if not, the line is refused."""
        if error <= tolerance:
            return True
        self.refused.append(f"{line}: results differ by {error:.1e}")
        print(f"  {self.refused[-1]}: no number", flush=True)
        return False

    def measure(self, what, against, passes, tokens, ours, theirs, rounds=None):
        """Adds a line for checked results."""
        mine, other = medians([ours, theirs], rounds or self.rounds)
        row = {"what": what, "against": against, "pass": passes, "tokens": tokens, "ours": mine, "theirs": other, "ratio": other / mine}
        self.rows.append(row)
        print(f"  {what:26} {passes:16} T {tokens:6}  {1e3 * mine:10.3f}   {against:28} {1e3 * other:10.3f}  {other / mine:8.2f}x", flush=True)

    def both_passes(self, what, against, tokens, ours, theirs, inputs, tolerance=1e-3, rounds=None):
        """Measures two lines, the forward pass and both passes: ours(*inputs) and theirs(*inputs) return o."""
        torch = self.torch
        with torch.no_grad():
            self.compare(what, against, "forward", tokens, lambda: [ours(*inputs)], lambda: [theirs(*inputs)], tolerance, rounds)
        grad_o = torch.randn_like(ours(*inputs))

        def gradients(function):
            leaves = [x.detach().requires_grad_() for x in inputs]
            o = function(*leaves)
            return [o.detach(), *torch.autograd.grad(o, leaves, grad_o)]

        self.compare(
            what, against, "forward+backward", tokens, lambda: gradients(ours), lambda: gradients(theirs), 10 * tolerance, rounds
        )

    def normal(self, tokens, *shape):
        """[1, tokens, *shape]."""
        return self.torch.randn(1, tokens, *shape)

    def qkv(self, tokens):
        return [self.normal(tokens, HEADS, SIZE) for _ in range(3)]

    def gate(self, tokens, *shape):
        """Returns log gates with a memory of about ten tokens."""
        return self.torch.rand(1, tokens, *shape) * -0.2

    def finish(self):
        """Writes build/bench/NAME.json; the exit code is 1 if a line was refused."""
        RESULTS.mkdir(parents=True, exist_ok=True)
        settings = {"threads": self.threads, "rounds": self.rounds, "heads": HEADS, "size": SIZE}
        result = {"peer": self.name, "settings": settings, "rows": self.rows, "refused": self.refused}
        (RESULTS / f"{self.name}.json").write_text(json.dumps(result, indent=1) + "\n")
        sys.exit(1 if self.refused else 0)
