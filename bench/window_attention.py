"""Speed of window_attention's kernel against PyTorch's causal attention over all keys (SDPA), interleaved in one process.

    .venv/bin/python bench/window_attention.py [--window 128] [--tokens 1024 4096 16384] [--heads 4] [--size 64] [--threads 2] [--rounds 5]

Prints medians in milliseconds, forward and forward + backward, of a window (0: all keys) and of SDPA, and their ratio. Refuses to
print a number if, with all keys visible, the two do not agree on the same inputs. Only the ratios of one run count.
"""

import argparse
import os
import statistics
import time
from pathlib import Path

import torch
import torch.nn.functional as F

ROOT = Path(__file__).resolve().parent.parent
BUILD = Path(os.environ.get("CORTADO_BUILD", ROOT / "build/release"))


def ours(inputs, window):
    return torch.ops.cortado.window_attention(*inputs, window=window or None)[0]


def sdpa(inputs):
    q, k, v = (x.transpose(1, 2) for x in inputs)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


def with_gradients(attention, inputs, grad_o):
    leaves = [x.detach().requires_grad_() for x in inputs]
    o = attention(leaves)
    return [o.detach(), *torch.autograd.grad(o, leaves, grad_o)]


def check(inputs, grad_o):
    found = with_gradients(lambda x: ours(x, 0), inputs, grad_o)
    for a, b in zip(found, with_gradients(sdpa, inputs, grad_o)):
        error = ((a - b).abs().max() / b.abs().max()).item()
        if not error < 1e-4:
            raise SystemExit(f"differs from SDPA by {error:.1e}: no numbers")


def medians(runs, rounds):
    times = [[] for _ in runs]
    for number in range(rounds + 1):
        for run, taken in zip(runs, times):
            start = time.perf_counter()
            run()
            if number:  # the first is a rehearsal
                taken.append(1e3 * (time.perf_counter() - start))
    return [statistics.median(x) for x in times]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 4096, 16384])
    for name, default in [("window", 128), ("heads", 4), ("size", 64), ("threads", 2), ("rounds", 5)]:
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    torch.ops.load_library(str(BUILD / "lib/libcortado_ops.so"))
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    print(f"{options.threads} threads, B 1, H {options.heads}, K = V = {options.size}, float32; milliseconds")
    print(f"{'T':>6} {'window':>7}  {'forward':>9} {'SDPA':>9} {'ratio':>7}  {'+ backward':>10} {'SDPA':>9} {'ratio':>7}")
    for tokens in options.tokens:
        inputs = [torch.randn(1, tokens, options.heads, options.size) for _ in range(3)]
        grad_o = torch.randn_like(inputs[0])
        check(inputs, grad_o)
        for window in (options.window, 0):
            with torch.no_grad():
                forward = medians([lambda: ours(inputs, window), lambda: sdpa(inputs)], options.rounds)
            both = medians(
                [
                    lambda: with_gradients(lambda x: ours(x, window), inputs, grad_o),
                    lambda: with_gradients(sdpa, inputs, grad_o),
                ],
                options.rounds,
            )
            print(
                f"{tokens:6} {window or 'all':>7}  {forward[0]:9.2f} {forward[1]:9.2f} {forward[1] / forward[0]:6.2f}x  "
                f"{both[0]:10.2f} {both[1]:9.2f} {both[1] / both[0]:6.2f}x",
                flush=True,
            )


if __name__ == "__main__":
    main()
